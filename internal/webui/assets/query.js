// What a query may go on with, while it is written.
"use strict";
(() => {
  const q = document.getElementById("q");
  const from = q?.dataset.complete;
  if (!from) return;
  const box = document.createElement("ul");
  box.id = "q-list";
  box.className = "suggestions";
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", "How the query may go on");
  box.hidden = true;
  q.form.append(box);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-controls": box.id, "aria-expanded": "false", "aria-haspopup": "listbox" })) q.setAttribute(name, value);
  let all = [], at = -1, timer, asked = 0;
  const open = () => !box.hidden;
  const close = () => {
    clearTimeout(timer);
    asked++;
    box.hidden = true;
    at = -1;
    q.setAttribute("aria-expanded", "false");
    q.removeAttribute("aria-activedescendant");
  };
  const mark = (n) => {
    at = n;
    Array.from(box.children).forEach((li, i) => li.setAttribute("aria-selected", i === n));
    if (n < 0) { q.removeAttribute("aria-activedescendant"); return; }
    q.setAttribute("aria-activedescendant", box.children[n].id);
    box.children[n].scrollIntoView({ block: "nearest" });
  };
  // The word before the caret; the service splits it off in the same way.
  const wordAt = () => {
    const before = q.value.slice(0, q.selectionStart);
    return Math.max(...[" ", "\t", "\n", "("].map((c) => before.lastIndexOf(c))) + 1;
  };
  const take = (s) => {
    const begin = wordAt(), end = q.selectionStart;
    const text = s.text + (/[:.]$/.test(s.text) ? "" : " ");
    q.setRangeText(text, begin, end + (text.endsWith(" ") && q.value[end] === " " ? 1 : 0), "end");
    q.focus();
    close();
    q.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const show = (some) => {
    all = some;
    at = -1;
    box.replaceChildren(...all.map((s, i) => {
      const li = document.createElement("li");
      li.id = "q-list-" + i;
      li.setAttribute("role", "option");
      li.setAttribute("aria-selected", "false");
      const text = document.createElement("code");
      text.textContent = s.text;
      li.append(text);
      if (s.doc) { const doc = document.createElement("span"); doc.className = "dim"; doc.textContent = s.doc; li.append(doc); }
      li.addEventListener("mousedown", (e) => { e.preventDefault(); take(s); });
      return li;
    }));
    box.hidden = all.length === 0;
    q.setAttribute("aria-expanded", String(open()));
    q.removeAttribute("aria-activedescendant");
  };
  const ask = async () => {
    const mine = ++asked;
    try {
      const answer = await fetch(from + (from.includes("?") ? "&" : "?") + new URLSearchParams({ q: q.value.slice(0, q.selectionStart) }));
      const some = answer.ok ? await answer.json() : [];
      if (mine === asked && document.activeElement === q) show(some);
    } catch { close(); }
  };
  const soon = (ms) => { clearTimeout(timer); timer = setTimeout(ask, ms); };
  q.addEventListener("input", () => {
    if (wordAt() === q.selectionStart) close(); else soon(120);
  });
  q.addEventListener("blur", close);
  q.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.isComposing) return;
    switch (e.key) {
      case "ArrowDown": e.preventDefault(); if (open()) mark((at + 1) % all.length); else soon(0); break;
      case "ArrowUp": if (open()) { e.preventDefault(); mark((at < 1 ? all.length : at) - 1); } break;
      case "Enter": case "Tab": if (open() && at >= 0) { e.preventDefault(); take(all[at]); } break;
      case "Escape": if (open()) { e.preventDefault(); e.stopPropagation(); close(); } break;
    }
  });
})();
