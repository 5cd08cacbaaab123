// The page can be read without this: it shows what belongs together, looks up tiles, and opens what is linked to.
"use strict";

(function () {
  // Rows of assembly and of the IR that have the same `data-l` belong together. A row under the mouse or with the focus
  // marks them until it is left; a click pins them until the next click or Escape.
  let lit = [], pinned = null;

  function show(row) {
    for (const other of lit) other.classList.remove("with");
    const name = row ? row.dataset.l : undefined;
    lit = name ? Array.from(document.querySelectorAll('tr[data-l="' + name + '"]')) : [];
    for (const other of lit) other.classList.add("with");
    if (!row) return;
    const pane = row.closest(".pane");
    const there = lit.find(function (other) { return other.closest(".pane") !== pane; });
    if (!there) return;
    const box = there.closest(".pane");
    const inside = there.offsetTop - box.scrollTop;
    if (inside < 40 || inside > box.clientHeight - 40) box.scrollTop = there.offsetTop - box.clientHeight / 2;
  }

  function pin(row) {
    if (pinned) pinned.classList.remove("pinned");
    pinned = row;
    if (pinned) pinned.classList.add("pinned");
    show(row);
  }

  for (const table of document.querySelectorAll("table.lines")) {
    const rowOf = function (event) { return event.target.closest("tr[data-l]"); };
    const follow = function (event) { if (!pinned) show(rowOf(event)); };
    table.addEventListener("mouseover", follow);
    table.addEventListener("focusin", follow);
    table.addEventListener("mouseleave", function () { if (!pinned) show(null); });
    table.addEventListener("click", function (event) {
      const row = rowOf(event);
      if (String(getSelection())) return;
      if (row) event.preventDefault();
      pin(row === pinned ? null : row);
    });
  }
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") pin(null); });
  for (const remark of document.querySelectorAll(".scripted")) remark.hidden = false;

  // The contents tell which section is in view.
  const entries = Array.from(document.querySelectorAll("nav a"));
  const follow = function () {
    const above = function (entry) {
      return document.getElementById(entry.hash.slice(1)).getBoundingClientRect().top < innerHeight / 3;
    };
    const ended = innerHeight + scrollY > document.documentElement.scrollHeight - 2;
    const at = ended ? entries[entries.length - 1] : entries.filter(above).pop() || entries[0];
    if (at.hasAttribute("aria-current")) return;
    for (const entry of entries) entry.removeAttribute("aria-current");
    at.setAttribute("aria-current", "true");
    const list = at.closest("ul");
    list.scrollLeft = at.offsetLeft - (list.clientWidth - at.offsetWidth) / 2;
  };
  window.addEventListener("scroll", follow, { passive: true });
  follow();

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
