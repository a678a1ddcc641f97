// Draws the charts that can be seen in the colours of the theme, redraws them on a change, opens what is linked or printed, shows
// definitions as tooltips.
(async function () {
  "use strict";
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const OPTIONS = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"] };
  const MINUTE_MS = 60000, PAPER_PX = 980;  // charts are scaled by 0.7 in print (report.css)
  const PNG_TITLE_PX = 26, PNG_SCALE = 2;

  // Decode base64 of gzip.
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  function colours(layout) {
    const style = getComputedStyle(root);
    const of = (name) => style.getPropertyValue(name).trim();
    const change = { "font.color": of("--text"), "hoverlabel.bgcolor": of("--card"), "hoverlabel.font.color": of("--text"),
      "hoverlabel.bordercolor": of("--line") };
    for (const name of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) {
      for (const part of ["gridcolor", "linecolor", "zerolinecolor"]) change[name + "." + part] = of("--line");
    }
    return change;
  }

  function set(layout, change) {
    for (const [path, value] of Object.entries(change)) {
      const parts = path.split(".");
      let target = layout;
      for (const part of parts.slice(0, -1)) target = target[part] = target[part] || {};
      target[parts[parts.length - 1]] = value;
    }
  }

  const charts = [...document.querySelectorAll(".plot")];
  const recolour = () => charts.filter((chart) => chart.layout).forEach((chart) => Plotly.relayout(chart, colours(chart.layout)));

  // Select ticks of a logarithmic axis whose labels do not overlap.
  function clear(axis, width) {
    const [low, high] = axis.range || [axis.tickvals[0], axis.tickvals.at(-1)].map(Math.log10), values = [], texts = [];
    let free = -Infinity;
    axis.tickvals.forEach((value, i) => {
      const at = (Math.log10(value) - low) / (high - low) * width, half = axis.ticktext[i].length * 3.5 + 4;
      if (at < -1 || at - half < free) return;
      free = at + half;
      values.push(value);
      texts.push(axis.ticktext[i]);
    });
    return Object.assign(axis, { tickvals: values, ticktext: texts, tickangle: 0 });
  }

  // Smaller margins and fonts on narrow pages. The inner width of a phone is that of the charts while they are wider than its screen.
  const isNarrow = () => root.clientWidth < 640;
  function fitted(layout, width) {
    if (isNarrow()) {
      layout.margin = Object.assign({}, layout.margin, { l: 62, r: 10 });
      layout.font.size = 10.5;
      for (const axis of Object.keys(layout).filter((name) => name.startsWith("xaxis"))) {
        layout[axis].nticks = 5;
        if (layout[axis].type === "category") layout[axis].tickangle = 0;
        if (layout[axis].type === "log" && layout[axis].tickvals) layout[axis] = clear(Object.assign({}, layout[axis]), 0.65 * width);
      }
    }
    return layout;
  }

  // Panels below each other move down for the further lines of the legends above them.
  function withLegends(layout, data, width) {
    const { l, r, t, b } = layout.margin, inner = layout.height - t - b, line = 1.6 * layout.font.size;
    const axes = Object.keys(layout).filter((name) => /^yaxis/.test(name) && layout[name].domain);
    let added = 0;
    const panels = axes.sort((one, other) => layout[other].domain[1] - layout[one].domain[1]).map((axis) => {
      const legend = axis.replace("yaxis", "legend");
      const named = [...data, ...(layout.shapes || []).filter((shape) => shape.showlegend)];
      const widths = named.filter((each) => each.name && each.showlegend !== false && (each.legend || "legend") === legend)
        .map((each) => 46 + 0.55 * layout.font.size * each.name.length);
      const isLine = widths.reduce((sum, each) => sum + each, 0) < width - l - r;
      added += isLine ? 0 : line * (Math.ceil(widths.length / Math.max(1, Math.floor((width - l - r) / Math.max(...widths)))) - 1);
      return { axis, legend, down: added };
    });
    for (const { axis, legend, down } of added ? panels : []) {
      const moved = (y) => 1 - ((1 - y) * inner + down) / (inner + added);
      layout[axis] = Object.assign({}, layout[axis], { domain: layout[axis].domain.map(moved) });
      layout[legend] = Object.assign({}, layout[legend], { y: moved(layout[legend].y) });
    }
    layout.height += added;
    return layout;
  }

  function draw(chart, figure) {
    chart.shown = figure;
    const plain = Object.assign({ font: { family: getComputedStyle(document.body).fontFamily, size: 12 } }, figure.layout);
    const layout = withLegends(fitted(plain, chart.clientWidth), figure.data, chart.clientWidth);
    set(layout, colours(layout));
    chart.style.minHeight = `${layout.height}px`;
    return Plotly.react(chart, figure.data, layout, Object.assign({ displayModeBar: !isNarrow() }, OPTIONS));
  }

  // Save a chart as shown, with its title and background.
  function savePng(chart, title) {
    const layout = structuredClone(chart.layout);
    layout.margin = Object.assign({}, layout.margin, { t: layout.margin.t + PNG_TITLE_PX });
    layout.title = { text: title, x: 0.01, xanchor: "left", y: 1, yref: "container", yanchor: "top", pad: { t: 10 }, font: { size: 15 } };
    layout.paper_bgcolor = getComputedStyle(root).getPropertyValue("--card").trim();
    const filename = `${document.title.split(" · ").pop()} ${chart.dataset.picture}`.replace(/[^\w.]+/g, "-");
    return Plotly.downloadImage({ data: chart.data, layout }, { format: "png", width: chart.clientWidth,
      height: layout.height + PNG_TITLE_PX, scale: PNG_SCALE, filename });
  }

  function offerPng(chart) {
    const button = chart.parentElement.querySelector("button.png");
    button.addEventListener("click", async () => {
      button.disabled = true;
      try { await savePng(chart, [button.dataset.title, document.body.dataset.caution].filter(Boolean).join(": ")); } finally { button.disabled = false; }
    });
    button.hidden = false;
  }

  // --- the turns of one minute -------------------------------------------------------------------------------------------
  function lanesOf(figure, lanes, minute) {
    const c = lanes.columns, start = minute * MINUTE_MS, end = start + MINUTE_MS;
    const traces = figure.data.filter((trace) => trace.mode === "lines").map((trace) => Object.assign({}, trace, { x: [], y: [] }));
    const ends = { x: [], y: [], text: [] }, failed = { x: [], y: [] }, unfinished = { x: [], y: [] };
    let most = 0;
    for (let i = 0; i < c.planned.length; i++) {
      if (c.planned[i] >= end || c.closed[i] < start) continue;
      const lane = c.lane[i], over = c.closed[i], sent = c.sent[i], first = c.first[i];
      const spans = [[c.planned[i], sent < 0 ? over : sent], [sent, first < 0 ? over : first], [first, over]];
      spans.forEach(([low, high], kind) => {
        const trace = traces[kind];
        if (low < 0 || high <= low || !trace) return;
        trace.x.push(low / 1e3, high / 1e3, null);
        trace.y.push(lane, lane, null);
      });
      most = Math.max(most, lane);
      const tokens = (count) => (count === null || count === undefined ? "?" : count);
      ends.x.push(((first < 0 ? c.planned[i] : first) + over) / 2e3);
      ends.y.push(lane);
      ends.text.push(`${c.name[i]}, ${c.class[i]}<br>TTFT ${first < 0 || sent < 0 ? "none" : first - sent + " ms"}, ` +
        `over after ${over - c.planned[i]} ms<br>${tokens(c.input[i])} tokens in, ${tokens(c.output[i])} out` +
        (c.failure[i] ? `<br><b>${c.failure[i]}</b>` : ""));
      const marked = c.failure[i] === "unfinished" ? unfinished : c.failure[i] ? failed : null;
      if (marked) { marked.x.push(over / 1e3); marked.y.push(lane); }
    }
    const width = Math.min(12, Math.max(2, 240 / (most + 1)));
    traces.forEach((trace) => { trace.line = Object.assign({}, trace.line, { width }); });
    const marks = { type: "scatter", mode: "markers", showlegend: false, marker: { size: 9, opacity: 0 }, hovertemplate: "%{text}<extra></extra>" };
    const marker = (name, points, symbol, color) =>
      points.x.length ? [Object.assign({ type: "scatter", mode: "markers", name, marker: { symbol, size: 7, color }, hoverinfo: "skip" }, points)] : [];
    const states = [...marker("failed", failed, "x", "#c8423b"), ...marker("unfinished", unfinished, "circle-open", "#8a8f98")];
    const layout = structuredClone(figure.layout);
    layout.xaxis.range = [start / 1e3, Math.min(end / 1e3, lanes.end_s)];
    layout.yaxis.range = [most + 0.6, -0.6];
    layout.hoverdistance = 12;
    return { data: [...traces, Object.assign(marks, ends), ...states], layout };
  }

  function chooser(chart, figure, lanes, chosen) {
    const select = document.getElementById("minute");
    for (const minute of lanes.minutes) select.add(new Option(`${minute} (from ${minute * 60} s)`, minute));
    select.value = chosen;
    const show = () => draw(chart, lanesOf(figure, lanes, Number(select.value)));
    select.addEventListener("change", show);
    document.querySelectorAll(".choose button").forEach((button) => button.addEventListener("click", () => {
      const next = select.selectedIndex + Number(button.dataset.by);
      if (next >= 0 && next < select.options.length) { select.selectedIndex = next; show(); }
    }));
    document.querySelectorAll("button.turn").forEach((button) => button.addEventListener("click", () => {
      const row = lanes.columns.name.indexOf(button.dataset.turn);
      if (row < 0) return;
      select.value = Math.floor(lanes.columns.planned[row] / MINUTE_MS);
      show().then(() => {
        const from = lanes.columns.planned[row] / 1e3, to = lanes.columns.closed[row] / 1e3, margin = Math.max(1, (to - from) / 2);
        Plotly.relayout(chart, { "xaxis.range": [from - margin, to + margin] });
        document.getElementById("lanes").scrollIntoView();
      });
    }));
    return show();
  }

  // --- light, dark, paper ------------------------------------------------------------------------------------------------
  const themes = ["", "light", "dark"];
  function applyTheme(theme) {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    try { localStorage.setItem("inferload-theme", theme); } catch (error) { /* no storage */ }
    if (window.Plotly) recolour();
  }
  document.getElementById("theme").addEventListener("click", () => applyTheme(themes[(themes.indexOf(root.dataset.theme || "") + 1) % 3]));
  try { applyTheme(localStorage.getItem("inferload-theme") || ""); } catch (error) { /* no storage */ }
  dark.addEventListener("change", recolour);
  // On paper everything is open, in light colours and at its width.
  const widen = (width) => charts.filter((chart) => chart.layout).forEach((chart) => Plotly.relayout(chart, { width, autosize: width === null }));
  let shownTheme = "", closed = [];
  window.addEventListener("beforeprint", () => {
    shownTheme = root.dataset.theme || "";
    root.dataset.theme = "light";
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((details) => { details.open = true; });
    if (window.Plotly) charts.filter((chart) => !chart.layout).forEach(show);
    recolour();
    widen(PAPER_PX);
  });
  window.addEventListener("afterprint", () => {
    if (shownTheme) root.dataset.theme = shownTheme; else delete root.dataset.theme;
    recolour();
    widen(null);
    closed.forEach((details) => { details.open = false; });
  });

  // --- definitions -------------------------------------------------------------------------------------------------------
  // The browser opens what it finds in the page; a link opens the group of its target, also when it is followed again.
  function unfold(hash) {
    const target = document.getElementById(hash.slice(1));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target?.scrollIntoView();
  }
  window.addEventListener("hashchange", () => unfold(location.hash));
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a[href^='#']");
    if (link) unfold(link.hash);
  });
  unfold(location.hash);
  // A table that scrolls can be scrolled by the keyboard.
  const boxes = new ResizeObserver((sizes) => sizes.forEach(({ target: box }) => { box.tabIndex = box.scrollWidth > box.clientWidth + 1 ? 0 : -1; }));
  document.querySelectorAll(".wide").forEach((box) => boxes.observe(box));
  const definition = (link) => (document.getElementById(link.hash.slice(1)) || { cells: [] }).cells[2]?.textContent || "";
  document.addEventListener("mouseover", (event) => {
    const link = event.target.closest && event.target.closest("a.n");
    if (!link || link.title) return;
    const cell = link.closest("td");
    const heads = cell ? [cell.parentElement.cells[0], cell.closest("table").tHead.rows[0].cells[cell.cellIndex]] : [];
    const links = heads.map((head) => head.querySelector("a.term")).filter(Boolean);
    link.title = (links.length ? links : [link]).map((term) => `${links.length ? term.textContent + ": " : ""}${definition(term)}`).join("\n");
  });

  const source = document.getElementById("figures");
  if (!source) { root.dataset.drawn = "all"; return; }
  if (typeof DecompressionStream === "undefined") {
    charts.forEach((chart) => { chart.textContent = "This browser cannot draw the charts; the figures are in the tables."; });
    return;
  }
  const text = source.type === "text/plain" ? await unpacked(source.textContent) : source.textContent;
  const { figures, lanes, chosen } = JSON.parse(text);
  const library = document.createElement("script");
  library.textContent = await unpacked(document.getElementById("plotly").textContent);
  document.head.append(library);
  function show(chart) {
    const figure = figures[chart.dataset.picture];
    offerPng(chart);
    return chart.dataset.picture === "lanes" && lanes ? chooser(chart, figure, lanes, chosen) : draw(chart, figure);
  }
  // Draw the charts that can be seen: those of a closed group when it opens.
  let drawing = Promise.resolve();
  function drawVisible() {
    root.dataset.drawn = "";
    drawing = drawing.then(async () => {
      for (const chart of charts.filter((each) => each.checkVisibility())) {
        if (!chart.layout) await show(chart);
        else if (chart.querySelector(".main-svg").clientWidth !== chart.clientWidth) await draw(chart, chart.shown);
        await new Promise((resolve) => setTimeout(resolve, 0)); // keep the page responsive
      }
      root.dataset.drawn = "all";
    });
  }
  document.querySelectorAll("details").forEach((details) => details.addEventListener("toggle", drawVisible));
  // Legends have other lines at another width.
  let width = root.clientWidth, soon;
  new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    clearTimeout(soon);
    soon = setTimeout(() => charts.filter((chart) => chart.shown && chart.checkVisibility()).forEach((chart) => draw(chart, chart.shown)), 100);
  }).observe(root);
  drawVisible();
})();
