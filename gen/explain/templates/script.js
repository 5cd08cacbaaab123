// The page can be read without this: it shows what belongs together, looks up tiles, and opens what is linked to.
"use strict";

(function () {
  // Rows of assembly and of the IR that have the same `data-l` belong together.
  let lit = [];

  function show(row, scrolls) {
    for (const other of lit) other.classList.remove("with");
    const name = row ? row.dataset.l : undefined;
    lit = name ? Array.from(document.querySelectorAll('tr[data-l="' + name + '"]')) : [];
    for (const other of lit) other.classList.add("with");
    if (!scrolls || !row) return;
    const pane = row.closest(".pane");
    const there = lit.find(function (other) { return other.closest(".pane") !== pane; });
    if (!there) return;
    const box = there.closest(".pane");
    const inside = there.offsetTop - box.scrollTop;
    if (inside < 40 || inside > box.clientHeight - 40) box.scrollTop = there.offsetTop - box.clientHeight / 2;
  }

  for (const table of document.querySelectorAll("table.lines")) {
    const rowOf = function (event) { return event.target.closest("tr[data-l]"); };
    table.addEventListener("mouseover", function (event) { show(rowOf(event), true); });
    table.addEventListener("focusin", function (event) { show(rowOf(event), true); });
    table.addEventListener("mouseleave", function () { show(null, false); });
  }

  // Which workgroup computes a tile: the table has all of them.
  const form = document.querySelector("form.lookup");
  if (form) {
    const m = form.elements.m, n = form.elements.n, answer = form.querySelector("output");
    const look = function () {
      const at = "(" + m.value + ", " + n.value + ")";
      const cell = document.getElementById("tile-" + m.value + "-" + n.value);
      answer.textContent = cell ? "Tile " + at + ": " + cell.title
        : "There is no tile " + at + ": M has tiles 0 to " + form.dataset.m + ", N 0 to " + form.dataset.n + ".";
    };
    form.hidden = false;
    form.addEventListener("input", look);
    form.addEventListener("submit", function (event) { event.preventDefault(); look(); });
    look();
  }

  // A link into something that is folded opens it.
  function unfold(id) {
    const node = id && document.getElementById(id);
    let opened = false;
    for (let at = node; at; at = at.parentElement) {
      if (at.tagName === "DETAILS" && !at.open) at.open = opened = true;
    }
    if (opened) node.scrollIntoView();
  }
  window.addEventListener("hashchange", function () { unfold(decodeURIComponent(location.hash.slice(1))); });
  if (location.hash) unfold(decodeURIComponent(location.hash.slice(1)));
})();
