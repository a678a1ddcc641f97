// Charts of the live view: uPlot figures on one time axis with a shared cursor and zoom. Texts are set as text, never as HTML.
(() => {
  const MARK_PX = 6; // distance of the cursor from a mark at which its text is displayed
  const number = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1e4) return Math.round(value).toLocaleString("en-US");
    if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
    return String(Number(value.toPrecision(3)));
  };
  const clock = (s) => new Date(s * 1000).toTimeString().slice(0, 8);
  const element = (name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  // "in flight" as "In flight"; "p50" and "KV" stay.
  const sentence = (text) => text.replace(/^[a-z-]+(?=[ ,]|$)/, (word) => word[0].toUpperCase() + word.slice(1));
  // Looks of the marks by what happened: a dash and a sign at the top of the line.
  const MARKS = {
    phase: { text: "Phase or step", sign: "", dash: [], kinds: ["phase", "step", "steady", "warmup_over"] },
    change: {
      text: "Change of the load",
      sign: "▲",
      dash: [6, 4],
      kinds: ["users", "rate", "ramp", "stop", "abort", "abort_on", "targets"],
    },
    worker: { text: "Worker lost or late", sign: "◆", dash: [2, 3], kinds: [] },
    fault: { text: "Fault or event", sign: "✕", dash: [1, 4], kinds: [] },
  };
  const kindOf = ({ kind }) => {
    if (kind.startsWith("worker_")) return "worker";
    return Object.keys(MARKS).find((name) => MARKS[name].kinds.includes(kind)) ?? "fault";
  };
  const LIMIT_DASHES = [[8, 4], [2, 3], [12, 3, 2, 3], [4, 8]]; // of the limits of one chart
  // A short line as in the charts. `colour`: a variable of the style sheet.
  const sample = (colour, dash, upright) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    const [x2, y2] = upright ? [0, 14] : [22, 0];
    node.setAttribute("class", "il-sample");
    node.setAttribute("viewBox", `-1 -1 ${x2 + 2} ${y2 + 2}`);
    node.setAttribute("width", x2 + 2);
    node.setAttribute("height", y2 + 2);
    const looks = { x2, y2, stroke: `var(--il-${colour})`, "stroke-width": 1.5, "stroke-dasharray": dash.join(" ") };
    for (const [name, value] of Object.entries(looks)) line.setAttribute(name, value);
    node.append(line);
    node.setAttribute("aria-hidden", "true");
    return node;
  };
  const colourOf = (root, name) => getComputedStyle(root).getPropertyValue(`--il-${name}`).trim() || "#888";

  // Indices of the values of a series without a neighbour, which a line cannot show.
  const isolated = (u, seriesIndex) => {
    const values = u.data[seriesIndex];
    const known = (index) => values[index] !== null && values[index] !== undefined;
    const indices = values.flatMap((_, index) => (known(index) && !known(index - 1) && !known(index + 1) ? [index] : []));
    return indices.length ? indices : null;
  };

  // All points of a document: those of the history (means, with low and high) and those at full resolution.
  class Store {
    constructor() {
      this.clear();
    }
    clear() {
      this.t = [];
      this.columns = new Map(); // name -> {mean, low, high}; low and high are null at full resolution
    }
    _column(name) {
      if (!this.columns.has(name)) {
        const empty = () => new Array(this.t.length).fill(null);
        this.columns.set(name, { mean: empty(), low: empty(), high: empty() });
      }
      return this.columns.get(name);
    }
    _append(t, mean, low, high) {
      const names = new Set([...this.columns.keys(), ...Object.keys(mean)]);
      for (const name of names) {
        const column = this._column(name);
        for (let i = 0; i < t.length; i++) {
          column.mean.push(mean[name] ? mean[name][i] : null);
          column.low.push(low[name] ? low[name][i] : null);
          column.high.push(high[name] ? high[name][i] : null);
        }
      }
      this.t.push(...t);
    }
    add(series, startS) {
      if (series.whole) this.clear();
      const at = (t) => t.map((second) => startS + second);
      const past = series.history;
      if (past) this._append(at(past.t), past.mean, past.low, past.high);
      this._append(at(series.points.t), series.points.columns, {}, {});
    }
    has(name) {
      const column = this.columns.get(name);
      return Boolean(column) && column.mean.some((value) => value !== null);
    }
    values(name, part) {
      const column = this.columns.get(name);
      return column ? column[part] : new Array(this.t.length).fill(null);
    }
    at(name, index) {
      const column = this.columns.get(name);
      return column && index >= 0 ? (column.mean[index] ?? null) : null;
    }
    newest(name) {
      return this.at(name, this.t.length - 1);
    }
  }

  class Chart {
    constructor(group, spec) {
      this.group = group;
      this.spec = spec;
      this.factor = spec.share ? 100 : 1;
      this.plot = null;
      this.lines = [];
      this.limits = [];
      this.figure = element("figure", "il-chart");
      const head = element("figcaption", "il-chart-head");
      this.heading = element("span", "il-chart-title", spec.title);
      this.legend = element("span", "il-legend");
      head.append(this.heading, this.legend);
      this.canvas = element("div", "il-canvas");
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "img");
      this.note = element("p", "il-none");
      this.figure.append(head, this.canvas, this.note);
      this.canvas.addEventListener("keydown", (event) => group.key(event, this));
    }
    _linesNow(store) {
      // In an open loop the number of users is a factor of the rate, and has no values.
      if (!this.spec.failures) return this.spec.lines.filter(({ key }) => key !== "users" || store.has(key));
      const kinds = [...store.columns.keys()].filter((name) => name.startsWith("failed:"));
      return kinds.map((key, index) => ({ key, label: key.slice("failed:".length), colour: 1 + ((index + 1) % 6) }));
    }
    _limits() {
      return (this.group.state.limits ?? []).filter((limit) => limit.measure === this.spec.measure);
    }
    _whyEmpty(state) {
      if (!this.spec.server) return "No value yet.";
      return state.scraped ? "The metrics page does not report it." : "No metrics page is scraped.";
    }
    update(store, state) {
      const lines = this._linesNow(store);
      const any = lines.some(({ key }) => store.has(key));
      this.figure.hidden = Boolean(this.spec.optional) && !any;
      this.canvas.hidden = !any;
      this.note.hidden = any;
      this.note.textContent = any ? "" : this._whyEmpty(state);
      if (this.figure.hidden) return;
      const shown = [...lines.map((item) => item.key), ...this._limits().map((limit) => limit.text)].join("\n");
      if (shown !== this.shown || (any && !this.plot)) {
        this.shown = shown;
        this._build(lines);
      }
      if (!any) {
        this._showValues(store, -1);
        return;
      }
      const scaled = (values) => (this.factor === 1 ? values : values.map((v) => (v === null ? null : v * this.factor)));
      const data = [store.t];
      for (const { key } of lines) {
        data.push(scaled(store.values(key, "mean")), scaled(store.values(key, "high")), scaled(store.values(key, "low")));
      }
      this.plot.batch(() => {
        this.plot.setData(data, false);
        this.plot.setScale("x", this.group.range(store));
      });
      this.figure.dataset.points = String(store.t.length);
      this._showValues(store, this.group.index ?? store.t.length - 1);
    }
    _showValues(store, index) {
      const words = [];
      for (const item of this.lines) {
        const value = store.at(item.key, index);
        const text = number(value === null ? null : value * this.factor);
        item.value.textContent = text;
        item.value.parentElement.hidden = !store.has(item.key); // such as the users of an open loop
        words.push(`${item.label} ${text}`);
      }
      this.canvas.setAttribute("aria-label", `Chart of ${this.spec.title}: ${words.join(", ")}`);
    }
    _build(lines) {
      this.legend.replaceChildren();
      this.lines = lines.map((item) => {
        const entry = element("span", "il-legend-item");
        const swatch = element("span", "il-swatch");
        swatch.style.setProperty("--il-swatch", `var(--il-line-${item.colour})`);
        const value = element("span", "il-legend-value", "–");
        entry.append(swatch, element("span", "", item.label), value);
        this.legend.append(entry);
        return { ...item, value };
      });
      this.limits = this._limits().map((limit, index) => {
        const entry = element("span", "il-legend-item il-legend-limit");
        const dash = LIMIT_DASHES[index % LIMIT_DASHES.length];
        entry.append(sample("limit", dash, false), element("span", "", limit.text));
        this.legend.append(entry);
        return { ...limit, dash };
      });
      this.destroy();
      if (!lines.length) return;
      this.plot = new uPlot(this._options(lines), [[0], ...lines.flatMap(() => [[null], [null], [null]])], this.canvas);
    }
    _options(lines) {
      const ink = (name) => () => colourOf(this.group.root, name);
      const axis = { stroke: ink("muted"), grid: { stroke: ink("grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      const series = [{}];
      const bands = [];
      lines.forEach((item, index) => {
        const colour = ink(`line-${item.colour}`);
        const path = item.step ? { paths: uPlot.paths.stepped({ align: 1 }) } : {};
        const points = { show: false, filter: isolated, size: 4, fill: colour };
        series.push({ stroke: colour, width: 1.5, points, spanGaps: false, ...path });
        series.push({ stroke: null, points: { show: false } }, { stroke: null, points: { show: false } });
        bands.push({ series: [3 * index + 2, 3 * index + 3], fill: ink(`band-${item.colour}`) });
      });
      const most = this.spec.share ? 100 : null;
      return {
        ...this.group.size(this.canvas),
        series,
        bands,
        legend: { show: false },
        padding: [16, 30, 0, 0],
        scales: {
          x: { time: true },
          y: { range: (u, low, high) => [0, most || this._top(high)] },
        },
        axes: [
          { ...axis, size: 26, space: 70, values: "{HH}:{mm}:{ss}" },
          { ...axis, size: 46, space: 28, values: (u, splits) => splits.map(number) },
        ],
        cursor: {
          sync: { key: this.group.syncKey },
          drag: { x: true, y: false, setScale: false, uni: 8 },
          points: { size: 6 },
          bind: { dblclick: () => () => this.group.zoom(null) },
        },
        hooks: {
          setCursor: [(u) => this.group.cursor(u)],
          setSelect: [(u) => this.group.selected(u)],
          draw: [(u) => this._drawMarks(u), (u) => this._drawLimits(u)],
        },
      };
    }
    _top(high) {
      const near = this._limits().filter((limit) => limit.limit_ms <= this.group.inRange * high);
      return high > 0 ? Math.max(high, ...near.map((limit) => limit.limit_ms)) * 1.1 : 1;
    }
    // Limits within the axis as lines; the values of those above it at its upper edge.
    _drawLimits(u) {
      const { ctx, bbox } = u;
      const above = this.limits.filter(({ limit_ms }) => limit_ms > u.scales.y.max).map(({ limit_ms }) => limit_ms);
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colourOf(this.group.root, "limit");
      ctx.font = `${11 * devicePixelRatio}px system-ui`;
      ctx.textAlign = "right";
      ctx.textBaseline = "bottom";
      const values = [...new Set(above)].sort((a, b) => a - b).map(number);
      const words = values.length ? `↑ ${values.length > 1 ? "limits" : "limit"} ${values.join(", ")}` : "";
      ctx.fillText(words, bbox.left + bbox.width, bbox.top - 2 * devicePixelRatio);
      this.figure.dataset.above = words;
      ctx.lineWidth = 1.5 * devicePixelRatio;
      for (const { limit_ms, dash } of this.limits) {
        if (limit_ms > u.scales.y.max) continue;
        ctx.setLineDash(dash.map((px) => px * devicePixelRatio));
        const y = Math.round(u.valToPos(limit_ms, "y", true)) + 0.5;
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
      }
      ctx.restore();
    }
    _drawMarks(u) {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      for (const mark of this.group.marks) {
        const x = Math.round(u.valToPos(mark.at_s, "x", true)) + 0.5;
        if (!mark.drawn || x < bbox.left || x > bbox.left + bbox.width) continue;
        const kind = kindOf(mark);
        const { dash, sign } = MARKS[kind];
        ctx.strokeStyle = ctx.fillStyle = colourOf(this.group.root, `mark-${kind}`);
        ctx.lineWidth = 1.5 * devicePixelRatio;
        ctx.setLineDash(dash.map((px) => px * devicePixelRatio));
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.font = `${10 * devicePixelRatio}px system-ui`;
        ctx.textAlign = "center";
        ctx.textBaseline = "top";
        ctx.fillText(sign, x, bbox.top);
      }
      ctx.restore();
    }
    resize() {
      if (this.plot && !this.canvas.hidden) this.plot.setSize(this.group.size(this.canvas));
    }
    destroy() {
      if (this.plot) this.plot.destroy();
      this.plot = null;
    }
  }

  let groups = 0;
  // All charts of one page: window, zoom, cursor and marks are common.
  class Group {
    constructor(root, onTime) {
      this.root = root;
      this.onTime = onTime;
      this.syncKey = `inferload-${(groups += 1)}`;
      this.store = new Store();
      this.marks = [];
      this.index = null; // of the point under the cursor
      this.zoomed = null; // [from, to] in seconds
      this.span_s = null; // displayed last seconds; null: the whole run
      this.state = {};
      this.grid = element("div", "il-grid");
      this.tip = element("div", "il-tip");
      this.tip.hidden = true;
      this.charts = [];
      this.root.append(this.tip);
      this.observer = new ResizeObserver(() => this.charts.forEach((chart) => chart.resize()));
      this.observer.observe(this.grid);
    }
    // Begin with the charts of a document.
    begin(specs, inRange) {
      this.inRange = inRange; // a limit above so many times the highest value is named at the edge
      this.charts = specs.map((spec) => new Chart(this, spec));
      this.grid.replaceChildren(...this.charts.map((chart) => chart.figure));
    }
    size(canvas) {
      return { width: Math.max(200, canvas.clientWidth || 300), height: 150 };
    }
    range(store) {
      const end = store.t[store.t.length - 1];
      if (this.zoomed) return { min: this.zoomed[0], max: this.zoomed[1] };
      const begin = this.state.start_s ?? store.t[0];
      const first = this.span_s === null ? begin : Math.max(begin, end - this.span_s);
      return { min: first, max: Math.max(end, first + 10) };
    }
    update(state = this.state) {
      this.state = state;
      if (!this.store.t.length) return;
      for (const chart of this.charts) chart.update(this.store, state);
    }
    zoom(range) {
      this.zoomed = range;
      this.update();
      this.onTime();
    }
    selected(u) {
      if (u.select.width < 8) return;
      const from = u.posToVal(u.select.left, "x");
      const to = u.posToVal(u.select.left + u.select.width, "x");
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      if (to - from >= 2) this.zoom([from, to]);
    }
    cursor(u) {
      const index = u.cursor.left >= 0 ? u.cursor.idx : null;
      if (index === this.index && index === null) return;
      this.index = index ?? null;
      for (const chart of this.charts) {
        if (chart.plot && !chart.canvas.hidden) chart._showValues(this.store, this.index ?? this.store.t.length - 1);
      }
      this._tip(u);
      this.onTime();
    }
    _tip(u) {
      if (u.cursor.left < 0) this.tip.hidden = true;
      if (u.cursor.left < 0 || !u.over.matches(":hover")) return; // moved by the cursor of another chart
      const near = this.marks.filter(
        (mark) => mark.drawn && Math.abs(u.valToPos(mark.at_s, "x") - u.cursor.left) <= MARK_PX,
      );
      this.tip.hidden = !near.length;
      this.tip.replaceChildren(...near.slice(0, 4).map((mark) => element("div", "", `${clock(mark.at_s)} ${mark.text}`)));
      const over = u.over.getBoundingClientRect();
      this.tip.style.left = `${Math.min(over.left + u.cursor.left + 12, innerWidth - 270)}px`;
      this.tip.style.top = `${over.top + 8}px`;
    }
    time() {
      return this.index === null ? null : (this.store.t[this.index] ?? null);
    }
    key(event, chart) {
      const u = chart.plot;
      const store = this.store;
      if (!u || !store.t.length) return;
      const { min, max } = u.scales.x;
      const at = this.index ?? store.t.length - 1;
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30 }[event.key];
      if (move !== undefined || event.key === "Home" || event.key === "End") {
        const first = store.t.findIndex((t) => t >= min);
        const last = store.t.findLastIndex((t) => t <= max);
        const next = event.key === "Home" ? first : event.key === "End" ? last : Math.min(last, Math.max(first, at + move));
        u.setCursor({ left: u.valToPos(store.t[next], "x"), top: 20 });
      } else if (event.key === "+" || event.key === "=" || event.key === "-") {
        const centre = this.time() ?? (min + max) / 2;
        const factor = event.key === "-" ? 2 : 0.5;
        const range = [centre - (centre - min) * factor, centre + (max - centre) * factor];
        if (range[1] - range[0] >= 4) this.zoom([Math.max(range[0], store.t[0]), range[1]]);
      } else if (event.key === "Escape" || event.key === "0") {
        this.zoom(null);
      } else return;
      event.preventDefault();
    }
    redraw() {
      for (const chart of this.charts) if (chart.plot) chart.plot.redraw(false);
    }
    destroy() {
      this.observer.disconnect();
      this.charts.forEach((chart) => chart.destroy());
    }
  }

  window.inferloadCharts = { Group, MARKS, number, clock, element, kindOf, sample, sentence };
})();
