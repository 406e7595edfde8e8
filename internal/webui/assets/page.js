// What makes the page live, and keys. Everything works without it, by links and forms.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const all = (sel, from = document) => Array.from(from.querySelectorAll(sel));
  const at = (path) => (document.documentElement.dataset.base ?? "") + path; // as in templates
  let said;
  const say = (text) => { if (text !== said) $("say").textContent = said = text; };

  // --- Times: relative as time goes by, absolute in the reader's own zone on hover.
  const relative = (t, now) => {
    let d = (now - t) / 1000;
    const ahead = d < 0;
    d = Math.abs(d);
    if (d < 2) return "now";
    const s = d < 100 ? Math.floor(d) + " s" : d < 6000 ? Math.floor(d / 60) + " min" : d < 172800 ? Math.floor(d / 3600) + " h" : Math.floor(d / 86400) + " d";
    return ahead ? "in " + s : s + " ago";
  };
  // The service's clock counts, not this machine's: due times are by it.
  const clock = document.querySelector("footer time[data-clock]");
  const skew = clock ? Date.parse(clock.dateTime) - Date.now() : 0;
  const local = (t) => t.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  const minutes = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const clocks = { short: minutes, seconds: { ...minutes, second: "2-digit" }, day: { ...minutes, day: "numeric", month: "short" } };
  const times = (from = document) => {
    const now = Date.now() + (Math.abs(skew) > 5000 ? skew : 0);
    for (const e of all("time[data-when]", from)) {
      const t = new Date(e.dateTime);
      const text = relative(t, now);
      if (e.textContent !== text) e.textContent = text;
      if (!e.dataset.local) { e.dataset.local = "1"; e.title = local(t) + " · " + e.title; }
    }
    for (const e of all("time[data-exact]", from)) {
      if (e.dataset.local) continue;
      e.dataset.local = "1";
      const t = new Date(e.dateTime);
      e.textContent = t.toLocaleString(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false, timeZoneName: "short" });
    }
    for (const e of all("time[data-clock]", from)) {
      if (e.dataset.local) continue;
      e.dataset.local = "1";
      const t = new Date(e.dateTime);
      e.title = local(t);
      e.textContent = t.toLocaleString([], clocks[e.dataset.clock] ?? clocks.seconds);
    }
  };
  times();
  if ($("zone")) $("zone").textContent = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "this machine's zone";
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
  const boxes = () => list ? Array.from(list.elements).filter((e) => e.name === "id" && e.type === "checkbox") : [];
  let matching = () => false; // selects all that match, and tells whether it did
  if (list && $("all")) {
    const buttons = all("#actions button[name=verb]");
    const more = $("all-matching"), on = $("all-matching-on");
    const total = () => (document.querySelector(".tabs .total")?.textContent ?? "").trim();
    const show = () => {
      const n = boxes().filter((b) => b.checked).length, whole = n > 0 && n === boxes().length;
      if (on && !whole) on.disabled = true;
      const every = on && !on.disabled;
      $("selected").textContent = every ? "All " + total() + " that match are selected" : n ? n + " selected" : "None selected";
      $("all").checked = whole;
      $("all").indeterminate = n > 0 && !whole;
      if (more) { more.hidden = !whole || every; $("all-matching-n").textContent = total(); }
      for (const b of buttons) b.disabled = n === 0;
    };
    matching = () => { if (!more || more.hidden) return false; on.disabled = false; show(); say($("selected").textContent); return true; };
    more?.addEventListener("click", matching);
    for (const e of all(".js", $("actions"))) e.hidden = false;
    $("all").addEventListener("change", () => { for (const b of boxes()) b.checked = $("all").checked; show(); });
    document.addEventListener("change", (e) => { if (e.target.form === list) show(); });
    document.addEventListener("refreshed", show);
    document.addEventListener("htmx:afterSwap", show); // the number of all that match
    addEventListener("pageshow", () => { if (on) on.disabled = true; show(); }); // a browser brings back what was checked
    show();
  }
  const check = (box, to) => { if (box.checked !== to) box.click(); };

  // --- Times of forms: the reader's own zone while they write, UTC when it is sent.
  const pad = (n) => String(n).padStart(2, "0");
  const minute = (t) => t.getFullYear() + "-" + pad(t.getMonth() + 1) + "-" + pad(t.getDate()) + "T" + pad(t.getHours()) + ":" + pad(t.getMinutes()) + ":" + pad(t.getSeconds());
  const zone = Intl.DateTimeFormat(undefined, { timeZoneName: "short" }).formatToParts(new Date()).find((p) => p.type === "timeZoneName")?.value ?? "your time";
  for (const e of all("[data-zone]")) e.textContent = e.textContent.startsWith("(") ? "(" + zone + ")" : zone;
  for (const input of all("input[data-utc]")) {
    const was = input.getAttribute("value");
    if (was) { const t = new Date(/[Z+]|-\d\d:\d\d$/.test(was.slice(10)) ? was : was + "Z"); if (!isNaN(t)) input.value = minute(t); }
    input.form?.addEventListener("formdata", (e) => {
      const text = e.formData.get(input.name);
      if (!text) { if (input.form.method === "get") e.formData.delete(input.name); return; }
      const t = new Date(text);
      if (!isNaN(t)) e.formData.set(input.name, t.toISOString().slice(0, 19) + "Z");
    });
  }

  // --- Keys
  const rows = () => all("table[data-rows] a[data-open]");
  const row = (e) => e?.closest?.("table[data-rows] tbody tr");
  let lastBox; // that was selected, by key
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
    const q = $("q"), here = row(document.activeElement), box = here?.querySelector('input[type="checkbox"]');
    const verb = (name) => {
      const own = $(name);
      if (own) { own.click(); return; }
      const button = document.querySelector(`#actions button[value="${name}"]`);
      if (!button) return;
      if (button.disabled && box) box.click();
      if (!button.disabled) button.click();
    };
    switch (e.key) {
      case "/": if (q) { e.preventDefault(); q.focus(); q.select(); } else location.href = at("/messages"); break;
      case "?": $("keys").showModal(); break;
      case "j": step(1); break;
      case "k": step(-1); break;
      case "ArrowDown": case "ArrowUp": if (here && !e.shiftKey) { e.preventDefault(); step(e.key === "ArrowDown" ? 1 : -1); } break;
      case "x": if (box) { box.click(); lastBox = box; } break;
      case "X": {
        if (!box) break;
        const some = boxes(), from = some.indexOf(lastBox?.isConnected ? lastBox : box), to = some.indexOf(box);
        for (const b of some.slice(Math.min(from, to), Math.max(from, to) + 1)) check(b, true);
        lastBox = box;
        break;
      }
      case "a": if (!matching()) for (const b of boxes()) check(b, true); break;
      case "Escape": for (const b of boxes()) check(b, false); break;
      case "n": ($("next") ?? document.querySelector("a[rel=next]"))?.click(); break;
      case "e": $("edit")?.click(); break;
      case "r": verb("replay"); break;
      case "d": verb("discard"); break;
    }
  });

  // --- Filters: the list follows what is typed.
  for (const form of all("form[data-filter]")) {
    let soon;
    form.addEventListener("input", () => {
      clearTimeout(soon);
      soon = setTimeout(() => {
        const asked = new URLSearchParams(location.search);
        asked.delete("after");
        for (const [name, value] of new FormData(form)) value ? asked.set(name, value) : asked.delete(name);
        history.replaceState(null, "", location.pathname + "?" + asked);
        dispatchEvent(new Event("filtered"));
      }, 250);
    });
  }

  // --- Live
  const live = $("live");
  let source, paused = false, last = 0, waiting;
  const state = (name, text) => { if (!live) return; live.dataset.state = name; if ($("live-state").textContent !== text) $("live-state").textContent = text; };
  const time = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
  const count = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

  // --- Whether the service answers: by its stream, to a refresh and, as a stream of a service that
  // hangs just stays silent, to a question where nothing was heard for a while.
  const failing = new Map(); // what fails: why
  let answered = Date.now();
  const works = (what) => {
    answered = Date.now();
    const was = failing.size;
    const again = failing.delete(what);
    if (what === "live") failing.delete("question");
    if (failing.size || paused) return;
    state("live", "Live");
    if (!was) return;
    $("disconnected").hidden = true;
    document.body.classList.remove("lost");
    say("Redrive answers again");
    if (live && again && what === "question") open(); // the stream that was silent may be dead
    later();
  };
  const fails = (what, status) => {
    if (paused) return;
    if (!failing.size) $("disconnected-since").textContent = time(answered);
    failing.set(what, status === 500 ? "Redrive answers with an error" : "No answer from Redrive");
    $("disconnected-why").textContent = failing.values().next().value;
    $("disconnected").hidden = false;
    document.body.classList.add("lost");
    state("lost", "Disconnected");
    say($("disconnected-why").textContent + "; the numbers are from before");
  };
  setInterval(async () => {
    if (paused || document.hidden) return;
    if (failing.has("refresh")) later();
    if (!failing.has("question") && Date.now() - answered < 5000) return;
    try {
      const answer = await fetch(at("/healthz"), { cache: "no-store", signal: AbortSignal.timeout(4000) });
      if (answer.status < 500) works("question"); else fails("question", answer.status);
    } catch { fails("question"); }
  }, 3000);

  // A part is only drawn anew while nobody is in it: what is under the cursor, has
  // the focus, or is unfolded stays as it is.
  const busy = (e) => e.matches(":hover") || e.contains(document.activeElement) || e.querySelector("details[open]:not(.numbers), input[type=checkbox]:checked") || (getSelection().rangeCount && !getSelection().isCollapsed && e.contains(getSelection().anchorNode));
  const refresh = async (forced) => {
    const asked = location.href;
    const parts = all("[data-refresh]");
    if (!parts.length) return;
    let page;
    try {
      const answer = await fetch(asked, { headers: { "X-Refresh": "1" }, signal: AbortSignal.timeout(20000) });
      if (answer.status >= 500) return fails("refresh", answer.status);
      works("refresh");
      if (!answer.ok || answer.redirected) return;
      page = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch { return fails("refresh"); }
    if (asked !== location.href) return; // the filter has changed meanwhile
    for (const old of parts) {
      const fresh = page.getElementById(old.id);
      if (!fresh || paused || (!forced && busy(old))) continue;
      if (document.dispatchEvent(new CustomEvent("part", { cancelable: true, detail: { old, fresh } }))) old.replaceChildren(...fresh.childNodes);
      times(old);
      ready(old);
    }
    document.dispatchEvent(new Event("refreshed"));
    const now = page.querySelector("footer time[data-clock]");
    if (now && clock) { clock.dateTime = now.dateTime; clock.textContent = time(Date.parse(now.dateTime)); }
  };
  const later = () => {
    if (waiting) return;
    waiting = setTimeout(async () => { await refresh(); waiting = undefined; }, Math.max(0, last + 3000 - Date.now()));
    last = Math.max(Date.now(), last + 3000);
  };
  if (!live) { // the page about all virtual hosts, which no stream of one of them tells of
    setInterval(() => { if (!document.hidden) refresh(); }, 5000);
    return;
  }
  live.hidden = false;

  const tick = (e) => {
    let t;
    try { t = JSON.parse(e.data); } catch { return; }
    works("live");
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
    source?.close();
    source = new EventSource(at("/api/v1/live"));
    source.onopen = () => works("live");
    source.onerror = () => {
      fails("live");
      if (source.readyState === EventSource.CLOSED) { clearTimeout(open.again); open.again = setTimeout(() => { if (!paused) open(); }, 5000); }
    };
    source.onmessage = tick;
    source.addEventListener("tick", tick);
  };
  const pause = (on) => {
    paused = on;
    $("live-pause").textContent = on ? "Resume" : "Pause";
    $("live-pause").setAttribute("aria-pressed", on);
    $("stale").hidden = !on;
    if (on) {
      source?.close();
      clearTimeout(open.again);
      $("stale-since").textContent = time(Date.now());
      failing.clear();
      $("disconnected").hidden = true;
      state("paused", "Paused");
    } else {
      open();
      later();
    }
  };
  addEventListener("filtered", () => refresh(true));
  $("live-pause").addEventListener("click", () => pause(!paused));
  $("live-resume").addEventListener("click", () => { pause(false); $("live-pause").focus(); });
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (e) => { if (e.persisted && !paused) open(); });
  open();
})();
