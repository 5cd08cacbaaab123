"""What a wrong request is told: the whole line, for each of them. It says what was given, what was wanted and where."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from convgen.backends.target import names
from convgen.commands import cli
from convgen.compile_steps import steps
from convgen.ir.build import KernelBuilder
from convgen.ir.text import to_text
from convgen.passes import pipeline
from convgen.plan.config import FIELDS
from convgen.problem.options import KNOBS_OF

TARGETS = ", ".join(names())
NO_TARGET = f"given target 'gfx000' (did you mean gfx950?), wanted one of {TARGETS}"
SHORT = {"DESC": "mb1ic16oc16ih6kh3ph1", "GEMM": "32x16:16x32", "F16": "--dir FWD_D --dt f16"}
NAMES = {
    "<passes>": ", ".join(p.name for p in pipeline.PASSES),
    "<steps>": ", ".join(step.name for step in steps("gfx942")),
    **{f"<{driver} knobs>": " ".join(f"--{o.name}" for o in options) for driver, options in KNOBS_OF.items()},
    "<config>": ", ".join(f"{word}=" for word in FIELDS),
    "<optimising>": ", ".join(step.name for step in steps("gfx942") if step.kind == pipeline.OPTIMISING),
}

#: command line -> the line on stderr, without "convgen: "
MESSAGES = [
    (
        "conv mb1ic64ih56zz5",
        "given 'zz5', wanted a key (g mb ic oc id od kd sd pd dd ih oh kh sh ph dh iw ow kw sw pw dw), at "
        "column 12: mb1ic64ih56^zz5",
    ),
    ("conv mb1ic64ihoc64", "given 'oc64' after ih, wanted a number from 0, at column 10: mb1ic64ih^oc64"),
    ("conv mb1ic-4oc4ih4kh1", "given '-4oc4ih4' after ic, wanted a number from 0, at column 6: mb1ic^-4oc4ih4kh1"),
    ("conv mb1ic64oc64", "given no spatial axis, wanted at least iw and kw, at column 12: mb1ic64oc64^"),
    ("conv mb1ic64oc64ih5", "given axis h without kh, wanted at least 1, at column 12: mb1ic64oc64^ih5"),
    ("conv mb1ic64oc64kh5", "given axis h without ih, wanted at least 1, at column 12: mb1ic64oc64^kh5"),
    ("conv mb1ic64oc64ih9kh3sh0", "given sh of 0, wanted at least 1, at column 18: mb1ic64oc64ih9kh3^sh0"),
    ("conv mb1oc64ih9kh3", "given no ic, wanted at least 1, at column 14: mb1oc64ih9kh3^"),
    ("conv mb1ic64ih9kh3", "given no oc, wanted at least 1, at column 14: mb1ic64ih9kh3^"),
    ("conv mb1ic0oc64ih9kh3", "given ic of 0, wanted at least 1, at column 4: mb1^ic0oc64ih9kh3"),
    ("conv g0ic64oc64ih9kh3", "given g of 0, wanted at least 1, at column 1: ^g0ic64oc64ih9kh3"),
    ("conv g3ic64oc63ih9kh3", "given ic64 and g3, wanted a multiple of the groups, at column 3: g3^ic64oc63ih9kh3"),
    (
        "conv ic4294967311oc64ih9kh3",
        "unsupported: given ic of 4294967311, wanted less than 2^31 - 4096: larger sizes are not generated",
    ),
    (
        "conv ic9999999999999999999999oc64ih9kh3",
        "given 99999999999999999... after ic, wanted less than 2^63, at column 3: ic^9999999999999999999999oc64ih9kh3",
    ),
    ("conv ic4oc4ih9kh30", "given sizes that make oh -20, wanted at least 1, at column 7: ic4oc4^ih9kh30"),
    (
        "conv ic4oc4id5kd3ih5kh3",
        "given axes d and h but not w, wanted all three or d alone, at column 7: ic4oc4^id5kd3ih5kh3",
    ),
    ("conv ic4oc4ih4kh0", "given axis h without kh, wanted at least 1, at column 10: ic4oc4ih4^kh0"),
    ("conv 'ic4oc4ih4kh1 ic4oc4ih4kh1'", "given 2 descriptors in 'ic4oc4ih4kh1 ic4oc4ih4kh1', wanted one"),
    (
        "conv ic4oc4ih4kh1@",
        "given '@', wanted a key (g mb ic oc id od kd sd pd dd ih oh kh sh ph dh iw ow kw sw pw dw), at "
        "column 13: ic4oc4ih4kh1^@",
    ),
    (
        "conv '--speed=1 ic4oc4ih4kh1'",
        "given the option '--speed=1', wanted one of <conv knobs>",
    ),
    ("conv ''", "given 0 descriptors in '', wanted one"),
    ("conv", "given no descriptor, wanted at least one such as mb1ic64ih56oc64oh56kh3ph1"),
    (
        "conv DESC --dir UP",
        "given 'UP', wanted one of FWD_B FWD_D FWD_I BWD_D BWD_W BWD_WB in --dir, at column 1: ^UP",
    ),
    (
        "conv DESC --dir FWDD",
        "given 'FWDD' (did you mean FWD_D?), wanted one of FWD_B FWD_D FWD_I BWD_D BWD_W BWD_WB in --dir, "
        "at column 1: ^FWDD",
    ),
    ("conv DESC --dir", "given --dir without a value, wanted one"),
    (
        "conv DESC --dt f17",
        "given the type 'f17' (did you mean f16?), wanted one of f16 bf16 f32 f64 s32 s8 u8 f8_e5m2 f8_e4m3 "
        "f8_e5m2fnuz f8_e4m3fnuz f6_e2m3 f6_e3m2 f4_e2m1 f4_e3m0 e8m0 s4 u4 boolean in --dt, at column 1: ^f17",
    ),
    ("conv DESC --dt f16:f16", "given 2 types, wanted one or src:wei:dst in --dt, at column 8: f16:f16^"),
    ("conv DESC --stag nchv", "given 'v', wanted the dimensions n c h w of a 4-D tensor in --stag, at column 4: nch^v"),
    ("conv DESC --stag abc", "given no dimension 'd', wanted all 4 in --stag, at column 4: abc^"),
    (
        "conv DESC --wtag goihw",
        "given 'h', wanted the dimensions g o i w of a 4-D tensor in --wtag, at column 4: goi^hw",
    ),
    ("conv DESC --wtag aBcd", "given 'B' without a block, wanted one such as 16b in --wtag, at column 2: a^Bcd"),
    ("conv DESC --dtag undef", "unsupported: given dtag undef, wanted a layout or any: it is not deduced"),
    ("conv DESC --strides 576x1x96", "given 1 parts, wanted src:wei:dst in --strides, at column 9: 576x1x96^"),
    (
        "conv DESC --strides ::576x1xhx16",
        "given 'xhx16', wanted strides such as 3200x1x160x16 in --strides, at column 8: ::576x1^xhx16",
    ),
    (
        "conv DESC --strides ::576x1x96x",
        "given 'x', wanted strides such as 3200x1x160x16 in --strides, at column 11: ::576x1x96^x",
    ),
    (
        "conv DESC --strides x::",
        "given 'x::', wanted strides such as 3200x1x160x16 in --strides, at column 1: ^x::",
    ),
    (
        "conv DESC --strides ::576x1x96",
        "given 3 strides 576x1x96, wanted 4 in --strides of dst, at column 9: 576x1x96^",
    ),
    (
        "conv DESC --strides 576x1x80x16::",
        "given the stride 80, wanted at least 96, past what the smaller strides reach, in --strides of src, "
        "at column 7: 576x1x^80x16",
    ),
    (
        "conv DESC --dtag 576x1x0x16",
        "given the stride 0, wanted at least 1, past what the smaller strides reach, in --strides of dst, "
        "at column 7: 576x1x^0x16",
    ),
    (
        "conv DESC --wtag oihw --strides :144x9x3x1:",
        "given oihw and strides of wei, wanted one of them in --wtag, at column 1: ^oihw",
    ),
    (
        "conv DESC --attr-deterministic yes",
        "given 'yes', wanted one of true false 1 0 in --attr-deterministic, at column 1: ^yes",
    ),
    (
        "conv DESC --attr-fpmath fast",
        "given the mode 'fast', wanted one of strict tf32 bf16 f16 any in --attr-fpmath, at column 1: ^fast",
    ),
    (
        "conv DESC --attr-fpmath bf16:maybe",
        "given the flag 'maybe', wanted one of true false 1 0 in --attr-fpmath, at column 6: bf16:^maybe",
    ),
    (
        "conv DESC --attr-post-ops dw:k3s1p1",
        "unsupported: given the post-op dw:k3s1p1 of a 3x3 convolution, wanted a 1x1 convolution",
    ),
    (
        "conv DESC --attr-post-ops sum+rellu",
        "given the post-op 'rellu' (did you mean relu?), wanted one such as relu, sum or add in --attr-post-ops, "
        "at column 5: sum+^rellu",
    ),
    (
        "conv DESC --attr-scales src:common:-1",
        "given the scale -1, wanted one from 0 in --attr-scales, at column 12: src:common:^-1",
    ),
    (
        "conv DESC --bia-dt f64 F16",
        "unsupported: given a bias of f64, wanted one of f32, f16, bf16, s32, s8, u8, "
        "f8_e4m3, f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz",
    ),
    ("conv DESC --mb -1", "given '-1' as a minibatch, wanted a number from 0 in --mb, at column 1: ^-1"),
    ("conv DESC --mb many", "given 'many' as a minibatch, wanted a number from 0 in --mb, at column 1: ^many"),
    (
        "conv DESC --mb 99999999999",
        "unsupported: given mb of 99999999999, wanted less than 2^31 - 4096: larger sizes are not generated",
    ),
    ("conv DESC F16 --target gfx000", NO_TARGET),
    ("conv DESC --run-groups 0", "given '0', wanted an integer from 1, at --run-groups"),
    ("conv DESC --run-groups 2.5", "given '2.5', wanted an integer from 1, at --run-groups"),
    ("conv DESC --seed -3", "given '-3', wanted an integer from 0, at --seed"),
    ("conv DESC --speed 11", "given --speed (did you mean --seed?), wanted what `convgen conv --help` lists"),
    ("conv DESC --js", "given --js (did you mean --json?), wanted what `convgen conv --help` lists"),
    ("conv DESC DESC -o k", "given 2 problems and -o k, wanted one problem, or a directory DIR/"),
    ("conv DESC F16 -o ''", "given an empty prefix, wanted a file prefix or DIR/, at -o"),
    ("conv DESC F16 -o /dev/null/k", "cannot write /dev/null: File exists, at -o"),
    (
        "conv DESC --dt s8:s8:f64 --target xehpg",
        "unsupported: given s8 inputs and dst of f64, wanted both inputs one of bf16, f16, f32, s8, u8, s8 with "
        "u8, or types whose values these hold, and dst one of f32, f16, bf16, s32, s8, u8, f8_e4m3, f8_e5m2, "
        "f8_e4m3fnuz, f8_e5m2fnuz on xehpg",
    ),
    (
        "conv DESC --dt f64:f64:f32 --target gfx950",
        "unsupported: given f64 inputs and dst of f32, wanted both inputs one of bf16, f16, f32, f64, f8_e4m3, "
        "f8_e5m2, s8, u8, f8_e4m3 with f8_e5m2, s8 with u8, or types whose values these hold, and dst one of f64 "
        "on gfx950",
    ),
    (
        "conv g2ic20oc20ih4kh1 F16 --dtag aBcd16b",
        "unsupported: given dst of layout aBcd16b, wanted blocks that end where groups, taps or windows do",
    ),
    ("conv DESC F16 --disable fast", "given pass 'fast', wanted one of <optimising>"),
    ("conv DESC F16 --disable lower_tiles", "given pass 'lower_tiles', wanted one of <optimising>"),
    ("conv DESC F16 --dump some", "given --dump=some, wanted all, changed or after:PASS"),
    ("conv DESC F16 --dump after:fast", "given pass 'fast', wanted one of <steps>"),
    ("conv DESC F16 --dump after:shedule", "given pass 'shedule' (did you mean schedule?), wanted one of <steps>"),
    ("conv DESC F16 --disable scoreboard", "given pass 'scoreboard', wanted one of <optimising>"),
    (
        "conv DESC F16 --dump-dir /dev/null/d --dump after:simplify",
        "cannot write /dev/null/d: Not a directory, at --dump-dir",
    ),
    ("conv DESC F16 --config tile=32", "given 'tile=32', wanted tile=MxNxK in the config"),
    (
        "conv DESC F16 --config fast",
        "given 'fast', wanted one of tile=, waves=, mma=, slots=, stages=, taps=, acc=, slices=, subtiles=, prefetch=, "
        "reorder=, packed=, sum=, map=, in=, grids=, phases=, pixels=, groups=, copy=, padding= in the config",
    ),
    (
        "conv DESC F16 --config 'tile=32x16x16 waves=1x1 mma=16x16x16 slices=0'",
        "given 'slices=0', wanted slices=COUNT in the config",
    ),
    ("conv DESC F16 --config ''", "given no tile=, wanted tile=MxNxK in the config"),
    ("conv DESC F16 --config 'tile=32x16x16 tile=1x1x1'", "given tile= twice, wanted it once in the config"),
    (
        "conv DESC F16 --config 'tile=32x16x16 waves=1x1 mma=9x9x9'",
        "given the config tile=32x16x16 waves=1x1 mma=9x9x9 slots=2 taps=split acc=v, wanted one that fits: "
        "gfx942 has no 9x9x9 matrix instruction for f16",
    ),
    (
        "conv DESC F16 --config 'tile=33x16x16 waves=1x1 mma=16x16x16'",
        "given the config tile=33x16x16 waves=1x1 mma=16x16x16 slots=2 taps=split acc=v, wanted one that "
        "fits: tile M over subgroups x the instruction's M x subtiles: 33 is not a multiple of 16",
    ),
    (
        "conv DESC F16 --config 'tile=32x16x16 waves=1x1 mma=16x16x16 slots=9'",
        "given 'slots=9', wanted slots=0|1|...|8 in the config",
    ),
    ("gemm 128x64:65x32", "given K of 65, wanted 64 as in the first matrix, at column 8: 128x64:^65x32"),
    ("gemm 128x64", "given nothing, wanted ':' between the two matrices, at column 7: 128x64^"),
    ("gemm 128:64x3", "given one size, wanted MxK, at column 1: ^128:64x3"),
    ("gemm 2x3x4:4x5", "given a 3-D by a 2-D tensor, wanted as many dimensions of both, at column 7: 2x3x4:^4x5"),
    ("gemm 2x3x4:3x4x5", "given a batch dimension of 3, wanted 2 or 1, at column 7: 2x3x4:^3x4x5"),
    (
        "gemm 16x99999999999:99999999999x4",
        "unsupported: given K of 99999999999, wanted less than 2^31 - 4096: larger sizes are not generated",
    ),
    ("gemm axb", "given 'axb' in MxK, wanted a number from 0, at column 1: ^axb"),
    ("gemm 4x4:4x4z", "given 'z', wanted the end, or n and a name, at column 8: 4x4:4x4^z"),
    ("gemm 4x0:0x4", "unsupported: given K of 0, wanted at least 1: sums of nothing are not generated yet"),
    ("gemm 4x4:4x4:4x5", "given another size of the result, wanted 4x4, at column 9: 4x4:4x4:^4x5"),
    ("gemm '4x4: 4x4'", "given 2 descriptors in '4x4: 4x4', wanted one"),
    ("gemm 4xx4:4x4", "given 'x4:4x4' in MxK, wanted a number from 0, at column 3: 4x^x4:4x4"),
    (
        "gemm '--dir=FWD_D 4x4:4x4'",
        "given the option '--dir=FWD_D', wanted one of <matmul knobs>",
    ),
    ("gemm ''", "given 0 descriptors in '', wanted one"),
    ("gemm", "given no descriptor, wanted at least one such as 128x64:64x128"),
    (
        "gemm GEMM --strides 16x1:1x15:",
        "given the stride 15, wanted at least 16, past what the smaller strides reach, in --strides of wei, "
        "at column 3: 1x^15",
    ),
    ("gemm GEMM --mb 3", "given --mb, wanted what `convgen gemm --help` lists"),
    (
        "gemm GEMM --dt s32",
        "unsupported: given s32 inputs and dst of s32, wanted both inputs one of bf16, f16, f32, f64, f8_e4m3fnuz,"
        " f8_e5m2fnuz, s8, u8, f8_e4m3fnuz with f8_e5m2fnuz, s8 with u8, or types whose values these hold, and dst one "
        "of f32, f16, bf16, s32, s8, u8, f8_e4m3, f8_e5m2, f8_e4m3fnuz, f8_e5m2fnuz on gfx942",
    ),
    ("gemm GEMM --dt f16 --stag abc", "given dimension 'c', wanted one of a 2-D tensor in --stag, at column 3: ab^c"),
    (
        "gemm GEMM --dt f16 --dtag AB4a",
        "given 'B' without a block, wanted one such as 16b in --dtag, at column 2: A^B4a",
    ),
    ("gemm GEMM --dt f16 --wtag bc", "given dimension 'c', wanted one of a 2-D tensor in --wtag, at column 2: b^c"),
    (
        "gemm GEMM --dt f16 --wtag undef",
        "unsupported: given wtag undef, wanted a layout or any: it is not deduced",
    ),
    (
        "",
        "given no command, wanted one of conv, deconv, gemm, batch, model, tune, run, check, export, analyze, profile, "
        "explain, diff, map, layout, replay, passes, targets, completion; see convgen --help",
    ),
    (
        "fly",
        "given 'fly', wanted one of conv, deconv, gemm, batch, model, tune, run, check, export, analyze, profile, "
        "explain, diff, map, layout, replay, passes, targets, completion; see convgen --help",
    ),
    (
        "bach",
        "given 'bach' (did you mean batch?), wanted one of conv, deconv, gemm, batch, model, tune, run, check, export, "
        "analyze, profile, explain, diff, map, layout, replay, passes, targets, completion; see convgen --help",
    ),
    (
        "--verbose",
        "given '--verbose', wanted one of conv, deconv, gemm, batch, model, tune, run, check, export, analyze, "
        "profile, explain, diff, map, layout, replay, passes, targets, completion; see convgen --help",
    ),
    ("run", "given no FILE, wanted one; see convgen run --help"),
    ("run missing.json", "cannot read missing.json: No such file or directory"),
    ("run .", "cannot read .: Is a directory"),
    ("run k.json --lds 4", "given --lds with the launch record k.json, wanted it with a code object only"),
    ("run k.json --out ''", "given an empty name, wanted a directory, at --out"),
    ("run k.json --data ''", "given an empty name, wanted a directory, at --data"),
    ("run k.json --trace ''", "cannot write '': No such file or directory, at --trace"),
    ("run k.json --strict all", "given 'all', wanted one of manual, llvm, at --strict"),
    ("run k.hsaco --out c", "given --out c, wanted NAME=FILE for each array of k.hsaco"),
    ("check k.json", "given the launch record k.json, wanted a code object; `convgen run` executes records"),
    (
        "check loop.ptx --block 32 --grid 999999,999999",
        "loop.ptx: given 999998000001 workgroups of kernel k, wanted at most 16777216 on the simulator",
    ),
    ("map", "given no problem, wanted one, or --grid MxN"),
    ("map GEMM --grid 2x2", "given a problem and --grid, wanted one of them"),
    ("map --grid 2x2 --dt f16", "given --dt with --grid, wanted it with a problem only"),
    ("map --grid 2x2 --config x", "given --config with --grid, wanted it with a problem only"),
    ("map GEMM --slices 2", "given --slices with a problem, wanted it with --grid only"),
    ("map --grid 2x2 --animate", "given --animate without -o, wanted it with -o FILE.svg"),
    ("layout", "given no layout, wanted one of LAYOUT, --wg-map or --sg-map, and --mma"),
    ("layout --mma 32x32x8 --tile 3x3", "given --tile with --mma, wanted it with --wg-map or --sg-map only"),
    ("layout --mma 32x32x8 --subgroup 5", "given --subgroup with --mma, wanted it with a layout or maps only"),
    (
        "layout --sg-map 'wi_layout = [2, 8], wi_data = [1, 2]' --tile 2x16 --operand a",
        "given --operand with maps, wanted it with --mma only",
    ),
    ("layout --mma 32x32x8 --at 32,0", "given 32,0, wanted an element of 32x32, at --at"),
    ("layout --mma 32x32x8 --owner 64", "given 64, wanted one of 64 threads, at --owner"),
    ("conv DESC --on hip -o k", "given --on hip without --run, wanted --run, or --run-groups to compare a sample"),
    (
        "batch k.json --check --run-groups 2",
        "given --run-groups with --check, wanted one of them: it generates nothing",
    ),
    ("batch k.json --run --on gpu", "given the device 'gpu', wanted one of hip:0, level_zero:0, cuda:0"),
    ("tune --merge missing --registry r", "cannot read missing: No such file or directory, at --merge"),
    (
        "targets all",
        f"given target 'all', wanted one of {TARGETS}",
    ),
    ("passes all", "given all, wanted what `convgen passes --help` lists"),
    ("analyze", "given no FILE, wanted one; see convgen analyze --help"),
    ("analyze missing.s", "cannot read missing.s: No such file or directory"),
    ("analyze k.txt", "given k.txt, wanted a file that ends in .s, .hsaco, .asm, .zebin or .ptx"),
    ("analyze empty.s", "given no .amdgcn_target, wanted one of gfx90a, gfx942, gfx950, in empty.s"),
    ("analyze wrong.s", "given wrong.s that does not assemble: line 2, column 3: invalid instruction"),
    ("analyze old.s", "given .amdgcn_target of gfx803, wanted one of gfx90a, gfx942, gfx950, in old.s"),
    (
        "analyze junk.hsaco",
        "given junk.hsaco that cannot be read: the code object is damaged: no header of a little-endian ELF64 file",
    ),
    ("analyze host.hsaco", "given host.hsaco that is neither a code object nor text"),
    ("explain GEMM", "given no -o, wanted one; see convgen explain --help"),
    ("explain GEMM -o k.txt", "given k.txt, wanted FILE.html, at -o"),
    ("explain GEMM -o bad.json/k.html --dt f16", "cannot write bad.json: File exists, at -o"),
    (
        "explain GEMM -o k.html --grid 4",
        "given --grid with the problem 32x16:16x32, where it has no meaning: see --help",
    ),
    ("explain k.s -o k.html --dt f16", "given --dt with the file k.s, wanted it with a problem only"),
    ("explain k.s -o k.html --config x", "given --config with the file k.s, where it has no meaning: see --help"),
    (
        "explain k.s -o k.html --chip mi300x",
        "given --chip with k.s and no --grid and --block, where it has no meaning: see --help",
    ),
    (
        "explain k.json -o k.html --grid 4",
        "given --grid with the launch record k.json, wanted it with a code object only",
    ),
    ("explain missing.s -o k.html", "cannot read missing.s: No such file or directory"),
    ("diff", "given no A, wanted one; see convgen diff --help"),
    ("diff GEMM", "given 32x16:16x32 alone, wanted two kernels: B, or two of --target, --config or --grid"),
    ("diff a b c", "given c, wanted what `convgen diff --help` lists"),
    ("diff GEMM --target a --target b --target c", "given 3 of --target, wanted one or two: A, B"),
    ("diff GEMM --config fast", "given 'fast', wanted one of <config> in the config"),
    ("diff a.s b.s --target xe2", "given two files with options of problems, wanted them with a problem only"),
    (
        "diff GEMM k.json --grid 4",
        "given a launch without a code object, wanted --grid, --block and --arg with one only",
    ),
    ("diff a.s GEMM --dt f16 --grid 4 --grid 8", "given two of --grid with one code object, wanted one"),
    ("diff a.s b.s --lds 4 --lds 8 --lds 16", "given 3 of --lds, wanted one or two: A, B"),
    ("diff a.s GEMM --dt f16 --arg B:n=4", "given --arg B:n where B is no code object, wanted it without B:"),
    ("diff GEMM missing.s --dt f16", "cannot read missing.s: No such file or directory"),
    ("profile", "given no FILE, wanted one; see convgen profile --help"),
    ("profile k.hsaco --chip x", "given --chip without a launch, wanted a launch record, or --grid and --block"),
    ("profile k.hsaco --grid 2", "cannot read k.hsaco: No such file or directory"),
    ("profile k.json --grid 2", "given --grid with the launch record k.json, wanted it with a code object only"),
    ("profile k.json --timeline t.pdf", "given t.pdf, wanted FILE.json, FILE.svg or FILE.png, at --timeline"),
    ("profile k.json --groups 2", "given --groups with a launch of k.json, wanted it with a loop alone"),
    ("profile k.json --rounds 7", "given '7', wanted an integer from 8, at --rounds"),
    ("replay", "given no FILE, wanted one; see convgen replay --help"),
    ("replay missing.dump", "cannot read missing.dump: No such file or directory"),
    ("replay .", "cannot read .: Is a directory"),
    ("replay no.dump", "given no.dump that begins with 'kernel k():', wanted a dump file ('# convgen dump')"),
    (
        "replay header.dump",
        "given the line '# speed: 9', wanted '# KEY: VALUE' with one of target, after, problem, config, "
        "disable, scalars, in header.dump",
    ),
    ("replay target.dump", "given no target, wanted '# target: NAME', in target.dump"),
    ("replay gfx.dump", NO_TARGET),
    ("replay pass.dump", "given pass 'fast', wanted one of <passes>"),
    ("replay name.dump", "an unknown name Fly, in line 3, at column 1: ^Fly(1)"),
    ("replay expr.dump", "given a dump of a Lane, wanted one of a kernel, in expr.dump"),
    ("replay scalars.dump", "given scalars '[1]', wanted a JSON object of numbers, in scalars.dump"),
    ("replay bytes.dump", "given bytes.dump that is not text, wanted a dump file"),
    ("replay scalar.dump", "given no value for scalar n of kernel k, wanted one in scalars="),
    ("completion", "given no SHELL, wanted one; see convgen completion --help"),
    ("completion fish", "given 'fish', wanted one of bash, zsh, at SHELL"),
    (
        "run bad.json",
        "given bad.json, wanted JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    ("run nokey.json", "given no 'target', wanted one, at nokey.json"),
    ("run dims.json", "given [1, 1], wanted x, y and z, at launches[0].grid of dims.json"),
]

TARGET = "# convgen dump\n# target: gfx942\n"
LAUNCH = (
    '{"target": "gfx942", "object": null, "launches": [{"kernel": "k", "grid": [1, 1], "workgroup": [64, 1, 1],'
    ' "lds_bytes": 0, "kernarg_size": 0, "args": []}]}'
)


def scalar_kernel() -> str:
    builder = KernelBuilder("k")
    builder.scalar("n")
    return to_text(builder.done())


FILES: dict[str, str | bytes] = {
    "empty.s": "",
    "wrong.s": '.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n  v_fly v0\n',
    "old.s": '.amdgcn_target "amdgcn-amd-amdhsa--gfx803"\n',
    "junk.hsaco": b"\x7fELFjunk",
    "host.hsaco": b"\xff\xfe\x00",
    "no.dump": "kernel k():\n",
    "header.dump": "# convgen dump\n# speed: 9\n",
    "target.dump": "# convgen dump\nlane\n",
    "gfx.dump": "# convgen dump\n# target: gfx000\n" + scalar_kernel(),
    "pass.dump": TARGET + "# after: fast\nlane\n",
    "name.dump": TARGET + "Fly(1)\n",
    "expr.dump": TARGET + "lane\n",
    "scalars.dump": TARGET + "# scalars: [1]\n" + scalar_kernel(),
    "scalar.dump": TARGET + scalar_kernel(),
    "bytes.dump": b"\xff\xfe",
    "bad.json": "{",
    "loop.ptx": ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n  ret;\n}\n",
    "nokey.json": "{}",
    "dims.json": LAUNCH,
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def spelled(text: str, words: dict[str, str]) -> str:
    for short, full in words.items():
        text = text.replace(short, full)
    return text


@pytest.mark.parametrize(("line", "message"), MESSAGES, ids=[line[:60] or "nothing" for line, _ in MESSAGES])
def test_messages(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    assert cli.main(shlex.split(spelled(line, SHORT))) == 2
    out, err = capsys.readouterr()
    assert err == f"convgen: {spelled(message, NAMES)}\n"
    assert out == ""
    assert sorted(path.name for path in Path().iterdir()) == sorted(FILES)


def test_there_are_many() -> None:
    assert len({line for line, _ in MESSAGES}) == len(MESSAGES) >= 100
