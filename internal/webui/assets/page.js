// What makes the page live, and keys. Everything works without it, by links and forms.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const all = (sel, from = document) => Array.from(from.querySelectorAll(sel));
  const at = (path) => (document.documentElement.dataset.base ?? "") + path; // as in templates
  let said;
  const say = (text) => { if (text !== said) $("say").textContent = said = text; };

  // --- Times: relative as time goes by, absolute in the reader's own zone and in UTC on hover.
  const relative = (t, now) => {
    let d = (now - t) / 1000;
    const ahead = d < 0;
    d = Math.abs(d);
    if (d < 2) return "now";
    const s = d < 120 ? Math.floor(d) + " s" : d < 7200 ? Math.floor(d / 60) + " min" : d < 172800 ? Math.floor(d / 3600) + " h" : Math.floor(d / 86400) + " d";
    return ahead ? "in " + s : s + " ago";
  };
  // The service's clock counts, not this machine's: due times are by it.
  const clock = document.querySelector("footer time[data-clock]");
  const skew = clock ? Date.parse(clock.dateTime) - Date.now() : 0;
  const title = (t) => (t.getTimezoneOffset() ? t.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" }) + " · " : "") + t.toISOString().slice(0, 19).replace("T", " ") + " UTC";
  const times = (from = document) => {
    const now = Date.now() + (Math.abs(skew) > 5000 ? skew : 0);
    for (const e of all("time[data-when]", from)) {
      const t = new Date(e.dateTime);
      let text = relative(t, now);
      if (text === "now" && e.dataset.when === "past") text = "just now";
      if (e.textContent !== text) e.textContent = text;
      if (!e.dataset.local) { e.dataset.local = "1"; e.title = title(t); }
    }
    for (const e of all("time[data-clock][datetime]", from)) {
      if (e.dataset.local === e.dateTime) continue;
      e.dataset.local = e.dateTime;
      const t = new Date(e.dateTime);
      e.title = title(t);
      e.textContent = t.toLocaleTimeString([], e.dataset.clock === "short" ? { hour: "2-digit", minute: "2-digit", hour12: false } : { hour12: false });
    }
  };
  times();
  setInterval(() => { if (!document.hidden) times(); }, 1000);

  // --- Copying
  const ready = (from = document) => { if (navigator.clipboard) for (const b of all("button[data-copy],button[data-copy-text],button[data-copy-value]", from)) b.hidden = false; };
  ready();
  document.addEventListener("click", async (e) => {
    const b = e.target.closest("[data-copy],[data-copy-text],[data-copy-value]");
    if (!b) return;
    const d = b.dataset;
    const text = d.copyValue ?? (d.copyText ? document.querySelector(d.copyText).textContent : b.parentElement.querySelector("code").textContent);
    try {
      await navigator.clipboard.writeText(text);
      const label = b.textContent;
      b.textContent = "Copied";
      say("Copied");
      setTimeout(() => { b.textContent = label; }, 1500);
    } catch { say("The browser did not allow copying"); }
  });

  // --- Reading: who goes elsewhere asks for it no more. A browser that keeps the page
  // for the way back would also keep its request, and has few at once.
  addEventListener("pagehide", () => { if ($("loading")) htmx.trigger("#loading", "htmx:abort"); });
  addEventListener("pageshow", (e) => { if (e.persisted && $("loading")) location.reload(); });

  // --- Selecting
  const list = $("list");
  if (list && $("all")) {
    const boxes = () => [...list.elements].filter((b) => b.name === "id" || b.name === "group");
    const buttons = all("#actions button[name=verb]");
    const show = () => {
      const n = boxes().filter((b) => b.checked).length;
      $("selected").textContent = n ? n + " selected" : "None selected";
      $("all").checked = n > 0 && n === boxes().length;
      $("all").indeterminate = n > 0 && n < boxes().length;
      for (const b of buttons) b.disabled = n === 0;
    };
    for (const e of all(".js", $("actions"))) e.hidden = false;
    $("all").addEventListener("change", () => { for (const b of boxes()) b.checked = $("all").checked; show(); });
    document.addEventListener("change", show); // boxes stand outside of the form, too
    addEventListener("pageshow", show); // a browser brings back what was checked
    show();
  }

  // --- Keys
  const rows = () => all("table[data-rows] a[data-open]");
  const row = (e) => e?.closest?.("table[data-rows] tbody tr");
  const step = (by) => {
    const links = rows();
    if (!links.length) return;
    const now = row(document.activeElement);
    const at = now ? links.findIndex((l) => now.contains(l)) : by > 0 ? -1 : links.length;
    const next = links[Math.max(0, Math.min(links.length - 1, at + by))];
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented || $("keys").open) return;
    if (e.target.matches("input:not([type=checkbox]),textarea,select,[contenteditable]")) {
      if (e.key === "Escape") e.target.blur();
      return;
    }
    const q = $("q");
    switch (e.key) {
      case "/": if (q) { e.preventDefault(); q.focus(); q.select(); } else location.href = at("/messages"); break;
      case "?": $("keys").showModal(); break;
      case "j": step(1); break;
      case "k": step(-1); break;
      case "x": row(document.activeElement)?.querySelector('input[type="checkbox"]')?.click(); break;
      case "e": $("edit")?.click(); break;
      case "r": {
        const own = $("replay");
        if (own) { own.click(); break; }
        const button = document.querySelector('#actions button[value="replay"]');
        if (!button) break;
        const box = row(document.activeElement)?.querySelector('input[type="checkbox"]');
        if (button.disabled && box) box.click();
        if (!button.disabled) button.click();
        break;
      }
    }
  });

  // --- Live
  const live = $("live");
  if (!live) return;
  live.hidden = false;
  let source, paused = false, lost = 0, last = 0, waiting;
  const state = (name, text) => { live.dataset.state = name; if ($("live-state").textContent !== text) $("live-state").textContent = text; };
  const since = (id) => { $(id).dateTime = new Date().toISOString(); times(); };
  const count = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

  // A part is only drawn anew while nobody is in it: what is under the cursor, has
  // the focus, or is unfolded stays as it is.
  const busy = (e) => e.matches(":hover") || e.contains(document.activeElement) || e.querySelector("details[open]:not(.numbers), .pick :checked") || (getSelection().rangeCount && !getSelection().isCollapsed && e.contains(getSelection().anchorNode));
  // The numbers may be old though the connection is up: the service answers with an error, or the session has ended.
  const outdated = (on) => {
    $("outdated").hidden = !on;
    if (on) say("What is shown is from before");
    else if (!lost && !paused && live.dataset.state === "old") state("live", "Live");
    if (on) state("old", "Not up to date");
  };
  const refresh = async () => {
    const parts = all("[data-refresh]");
    if (!parts.length) return;
    let page;
    try {
      const answer = await fetch(location.href, { headers: { "X-Refresh": "1" } });
      if (!answer.ok || answer.redirected) throw new Error(answer.status);
      page = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      if (!paused && !lost) outdated(true);
      return;
    }
    outdated(false);
    for (const old of parts) {
      const fresh = page.getElementById(old.id);
      if (!fresh || paused) continue;
      if (busy(old)) { old.addEventListener("pointerleave", later, { once: true }); continue; }
      if (document.dispatchEvent(new CustomEvent("part", { cancelable: true, detail: { old, fresh } }))) old.replaceChildren(...fresh.childNodes);
      times(old);
      ready(old);
    }
    const now = page.querySelector("footer time[data-clock]");
    if (now && clock) { clock.dateTime = now.dateTime; times(); }
  };
  const later = () => {
    if (waiting) return;
    waiting = setTimeout(async () => { await refresh(); waiting = undefined; }, Math.max(0, last + 3000 - Date.now()));
    last = Math.max(Date.now(), last + 3000);
  };

  const tick = (e) => {
    let t;
    try { t = JSON.parse(e.data); } catch { return; }
    for (const el of all("[data-live]")) {
      const v = el.dataset.live.split(".").reduce((o, k) => o?.[k], t);
      if (v !== undefined && el.textContent !== count(v)) el.textContent = count(v);
    }
    if (t.failed > 0 && $("newer") && window.htmx) {
      clearTimeout(tick.soon);
      tick.soon = setTimeout(() => htmx.trigger("#newer", "tick"), 1000);
    }
    if (!document.hidden) later();
  };
  const open = () => {
    source = new EventSource(at("/api/v1/live"));
    source.onopen = () => {
      if (lost) { say("Connected again"); later(); }
      lost = 0;
      $("disconnected").hidden = true;
      document.body.classList.remove("lost");
      state("live", "Live");
    };
    source.onerror = () => {
      if (!lost) { lost = Date.now(); since("disconnected-since"); }
      state("lost", "Disconnected");
      $("disconnected").hidden = false;
      document.body.classList.add("lost");
      say("Disconnected from the service; what is shown is from before");
      if (source.readyState === EventSource.CLOSED) { clearTimeout(open.again); open.again = setTimeout(() => { if (!paused) open(); }, 5000); }
    };
    source.onmessage = tick;
    source.addEventListener("tick", tick);
  };
  const pause = (on) => {
    paused = on;
    $("live-pause").textContent = on ? "Resume updates" : "Pause updates";
    $("live-pause").setAttribute("aria-pressed", on);
    $("stale").hidden = !on;
    if (on) {
      source?.close();
      clearTimeout(open.again);
      since("stale-since");
      $("disconnected").hidden = true;
      state("paused", "Paused");
    } else {
      open();
      later();
    }
  };
  $("live-pause").addEventListener("click", () => pause(!paused));
  $("live-resume").addEventListener("click", () => { pause(false); $("live-pause").focus(); });
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (e) => { if (e.persisted && !paused) open(); });
  open();
})();
