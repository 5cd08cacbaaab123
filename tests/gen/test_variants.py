"""Variants of the implicit GEMM: each is one module and its word in `config.VARIANTS`, and nothing asks which it is."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from convgen import driver
from convgen.backends.target import get
from convgen.choose.choose import candidates, clocks_of
from convgen.choose.offers import offers
from convgen.explain.words import config_words
from convgen.ir.error import DoesNotFit
from convgen.plan import config
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.plan.variants.plain import Loads, Plain
from convgen.plan.variants.variant import Offer, Variant, of_words, variant, variant_of
from convgen.problem.conv import Conv
from convgen.run import verdict

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "gen" / "plan" / "variants"
SHARED = {"__init__", "variant", "plain"}  #: modules that are no variant
LAYER = Conv.parse("mb1ic24ih6oc32oh6kh3ph1", dir="FWD_D", dt="f16")
TILE = "tile=32x32x32 waves=1x1 mma=16x16x16 slots=1"


class _Octets(Plain):
    """A variant that no product file knows: the innermost run of K is padded to eight elements."""

    word = "octets"
    summary = "blocks of taps padded to eight elements"

    def block(self, tile_k: int, elem_bytes: int, chunk_bytes: int) -> int:
        return 8

    def refusals(self, problem: object, config: Config, facts: object) -> list[str]:  # type: ignore[override]
        return ["taps=octets: wanted one slot"] if config.slots != 1 else []

    def suits(self, offer: Offer, loads: Loads, deepest: int, chunk: int, facts: object) -> bool:
        return offer.inner % 8 == 0


@pytest.fixture
def octets(monkeypatch: pytest.MonkeyPatch) -> Variant:
    """The variant as a module and a word, as a product file and its line would add it."""
    module = ModuleType("convgen.plan.variants.octets")
    module.VARIANT = _Octets()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    words = (*config.VARIANTS, "octets")
    monkeypatch.setattr(config, "VARIANTS", words)
    monkeypatch.setattr("convgen.choose.offers.VARIANTS", words)
    monkeypatch.setitem(config.FIELDS, "taps", ("|".join(words), lambda text: text if text in words else None))
    variant.cache_clear()
    return variant("octets")


def test_each_word_has_a_module_and_each_module_a_word() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")} - SHARED
    assert modules == {*config.VARIANTS, "lanes"}
    assert [each.word for each in of_words(config.VARIANTS)] == list(config.VARIANTS)
    assert variant_of(Config.parse(TILE)) is variant("split")


def test_no_module_outside_asks_which_variant_it_is() -> None:
    """Words of variants stand in their modules, in the list of words, and where a config is written whole."""
    words = {*config.VARIANTS} - {"split", "fused"}  # which are words of other things, too
    rooms = ("plan", "choose", "kernels", "tune")
    paths = [path for room in rooms for path in (ROOT / "gen" / room).rglob("*.py")]
    for path in (path for path in paths if path.parent != FOLDER and path.name != "config.py"):
        strings = {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
        assert not strings & words, path


def test_a_variant_of_one_module_is_generated_and_right(octets: Variant) -> None:
    line = f"{TILE} taps=octets acc=v"
    code = driver.compile(driver.build(LAYER, "gfx942", line))
    assert verdict.run(code, groups=4).passed


def test_a_variant_of_one_module_is_offered_ranked_refused_and_explained(octets: Variant) -> None:
    facts, given = get("gfx942").facts, Config.parse(f"{TILE} taps=octets")
    assert any(octets in offer.variants for offer in offers(LAYER, facts, ()))
    assert any(candidate.config.taps == "octets" for candidate in candidates(LAYER, facts))
    assert clocks_of(LAYER, given, facts) is not None
    with pytest.raises(DoesNotFit, match="taps=octets: wanted one slot"):
        make_plan(LAYER, Config.parse(f"{TILE.replace('slots=1', 'slots=2')} taps=octets"), facts)
    assert any(octets.summary in meaning for _, _, meaning in config_words(given))
