// The charts of the flow, each drawn from the table below it, which says the same.
"use strict";
if (window.uPlot) document.querySelectorAll(".chart").forEach((flow) => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const read = (from) => {
    const data = [[], [], [], []];
    for (const tr of from.querySelectorAll(".minutes tbody tr")) {
      data[0].push(Date.parse(tr.querySelector("time").dateTime) / 1000);
      tr.querySelectorAll("td.n").forEach((td, i) => data[i + 1].push(Number(td.textContent)));
    }
    return data;
  };
  let plot, box, readout;
  const draw = (data) => {
    const svg = flow.querySelector(".lines");
    if (svg) {
      box = document.createElement("div");
      box.className = "plot";
      box.setAttribute("role", "img");
      box.setAttribute("aria-label", svg.getAttribute("aria-label"));
      readout = document.createElement("span");
      readout.className = "dim";
      readout.setAttribute("aria-hidden", "true");
      flow.parentElement.querySelector(".legend").append(readout);
      svg.replaceWith(box);
    }
    if (!box) return;
    plot?.destroy();
    const line = (label, name, dash) => ({ label, dash, stroke: colour(name), width: 1.6, points: { show: false } });
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    plot = new uPlot({
      width: box.clientWidth, height: 200, legend: { show: false }, padding: [8, 22, 0, 0],
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (u, min, max) => [0, Math.max(4, max * 1.08)] } },
      axes: [{ ...axis, space: 70, values: (u, ts) => ts.map((t) => new Date(t * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false })), size: 28 }, { ...axis, size: (u, values) => Math.max(44, ...(values ?? []).map((v) => 16 + 7 * v.length)) }],
      series: [{}, line("failed", "--failed-line"), line("retried", "--retried-line", [8, 5]), line("parked", "--parked-line", [3, 5])],
      hooks: { setCursor: [(u) => {
        const i = u.cursor.idx;
        const t = i == null ? null : new Date(u.data[0][i] * 1000);
        readout.textContent = !t ? "" : t.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false }) + " (" + t.toISOString().slice(11, 16) + " UTC): " + ["failed", "retried", "parked"].map((n, s) => u.data[s + 1][i] + " " + n).join(", ") + (i == u.data[0].length - 1 ? " so far" : "");
      }], draw: [(u) => {
        const x = u.valToPos(u.data[0].at(-2), "x", true);
        u.ctx.globalAlpha = .6;
        u.ctx.fillStyle = colour("--card");
        u.ctx.fillRect(x, u.bbox.top, u.bbox.left + u.bbox.width - x, u.bbox.height);
        u.ctx.globalAlpha = 1;
      }] },
    }, data, box);
  };
  const data = read(flow);
  if (flow.querySelector(".lines")) draw(data);
  new ResizeObserver(() => { if (plot && box.clientWidth) plot.setSize({ width: box.clientWidth, height: 200 }); }).observe(flow);
  dark.addEventListener("change", () => { if (plot) draw(plot.data); });
  // A fresh part brings new numbers: the plot takes them and stays.
  document.addEventListener("part", (e) => {
    if (e.detail.old !== flow || !plot || !e.detail.fresh.querySelector(".lines")) return;
    e.preventDefault();
    const fresh = e.detail.fresh.querySelector(".minutes tbody");
    plot.setData(read(e.detail.fresh));
    flow.querySelector(".minutes tbody").replaceWith(fresh);
  });
});
