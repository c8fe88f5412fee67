"use strict";
// Draws every chart of the page in the colours of its style sheet, again when those change.
(() => {
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 760px)");  // a legend of many entries would leave no room
  const names = ["ground", "paper", "ink", "muted", "faint", "line", "accent"];

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(names.map((name) => ["@" + name, style.getPropertyValue("--" + name).trim()]));
  }

  function coloured(value, palette) {
    if (typeof value === "string") return Object.hasOwn(palette, value) ? palette[value] : value;
    if (Array.isArray(value)) return value.map((item) => coloured(item, palette));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, palette)]));
  }

  function axis(given, palette) {
    const title = given.title ? { ...given.title, standoff: 8, font: { size: 12 } } : undefined;
    const ticks = given.type === "log" ? { dtick: 1 } : {};
    return {
      gridcolor: palette["@line"], linecolor: palette["@line"], zeroline: false, automargin: true, fixedrange: true,
      ...ticks, ...given, title,
    };
  }

  function laidOut(layout, palette) {
    return {
      ...layout,
      xaxis: axis(layout.xaxis, palette),
      yaxis: axis(layout.yaxis, palette),
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: palette["@muted"] },
      margin: { l: 8, r: 8, t: 8, b: 8 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } },
      hoverlabel: {
        bgcolor: palette["@paper"], bordercolor: palette["@line"], align: "left",
        font: { color: palette["@ink"], size: 12 },
      },
    };
  }

  function draw(holder) {
    if (holder.closest("details:not([open])")) return;
    const chart = JSON.parse(holder.querySelector("script").textContent);
    const palette = colours();
    const layout = coloured(laidOut(chart.layout, palette), palette);
    const data = coloured(chart.data, palette);
    if (narrow.matches) for (const trace of data) if (trace.visible === "legendonly") trace.showlegend = false;
    Plotly.react(holder.querySelector("div"), data, layout, {
      displayModeBar: false, responsive: true,
    });
  }

  function drawAll(root) {
    root.querySelectorAll(".chart").forEach(draw);
  }

  scheme.addEventListener("change", () => drawAll(document));
  document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", () => drawAll(part)));
  if (location.hash) document.getElementById(location.hash.slice(1))?.setAttribute("open", "");
  document.querySelectorAll("a[href^='#']").forEach((link) => {
    link.addEventListener("click", () => document.getElementById(link.hash.slice(1))?.setAttribute("open", ""));
  });
  drawAll(document);
  document.documentElement.dataset.drawn = "yes";
})();
