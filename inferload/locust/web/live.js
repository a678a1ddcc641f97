// Live view of a run: polls the document once a second, and draws badge, steering, figures, charts, tables and marks.
(() => {
  const { Group, MARKS, number, clock, element, kindOf, sample, sentence } = window.inferloadCharts;
  const POLL_MS = 1000;
  const SLOW_MS = 2000; // without a run in progress, and in a hidden page
  const MOST_POINTS = 2400; // then the whole run is fetched anew, with older points in buckets
  const FILES = ["summary.json", "timeline.csv", "turns.zip", "run.zip"];
  const span = (s) => {
    const whole = Math.max(0, Math.round(s));
    const [h, m, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    const two = (n) => String(n).padStart(2, "0");
    return h ? `${h}:${two(m)}:${two(rest)}` : `${m}:${two(rest)}`;
  };
  const share = (value) => (value === null || value === undefined ? "–" : `${number(value * 100)} %`);
  const setText = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };

  class View {
    constructor(root, base, alone) {
      this.root = root;
      this.base = base;
      this.alone = alone;
      this.run = null; // ID of the displayed run
      this.after = 0;
      this.marksTo = 0;
      this.filters = { class: "", target: "" };
      root.classList.add("il-root");
      this._build();
      this.media = matchMedia("(prefers-color-scheme: dark)");
      this.media.addEventListener("change", () => this._theme());
      this._theme();
      this._poll();
    }

    // -- layout

    _build() {
      this.badge = element("span", "il-badge", "…");
      this.badge.setAttribute("role", "status");
      this.name = element("span", "il-name");
      this.chips = element("span", "il-chips");
      this.facts = element("span", "il-facts");
      const head = element("div", "il-head");
      head.append(this.badge, this.name, this.chips, this.facts);
      const top = element("div", "il-top");
      this.links = element("nav", "il-links");
      this.links.setAttribute("aria-label", "Report and runs");
      this._link(null);
      this.error = element("p", "il-error");
      this.error.setAttribute("role", "alert");
      this.reasons = element("ul", "il-reasons");
      this.measurement = element("p", "il-measurement");
      this.bottleneck = element("p", "il-bottleneck");
      this.empty = element("p", "il-empty");
      this.body = element("div");
      this.steer = window.inferloadSteer ? new window.inferloadSteer.Panel(this.base, () => this._poll()) : null;
      this.tiles = element("dl", "il-tiles");
      this._buildFilters();
      this.charts = new Group(this.root, () => this._showTime());
      this.key = element("ul", "il-key");
      this.key.setAttribute("aria-label", "Marks and limits in the charts");
      this.gates = this._table("Gates", ["Gate", "Value", "Result", "Note"]);
      this.classes = { section: element("div") };
      this.others = this._table("Other requests", ["Request", "Sent", "Failed", "p50, ms", "p95, ms", "First failure"]);
      const marks = element("section");
      this.markList = element("ol", "il-marks");
      this.markList.tabIndex = 0;
      this.markList.setAttribute("aria-label", "Marks");
      marks.append(element("h2", "", "Marks"), this.markList);
      const columns = element("div", "il-columns");
      columns.append(this.gates.section, marks);
      this.valueTable = this._table("", ["Figure", "Now", "Lowest", "Highest"]);
      const details = element("details");
      details.append(element("summary", "", "All current values as a table"), this.valueTable.section);
      this.details = details;
      details.addEventListener("toggle", () => this._showValues());
      this.body.append(
        ...(this.steer ? [this.steer.node] : []),
        this.tiles,
        this.bar,
        this.key,
        this.charts.grid,
        this.classes.section,
        this.others.section,
        columns,
        details,
      );
      top.append(head, ...(this.steer ? [this.steer.stop] : []));
      this.root.append(top, this.links, this.error, this.reasons, this.measurement, this.bottleneck, this.empty, this.body);
      for (const node of [this.error, this.measurement, this.bottleneck, this.body, this.reasons]) node.hidden = true;
    }
    // Links to the report and the files of an ended run, and to the list of runs.
    _link(name) {
      if (this.links.dataset.run === (name ?? "")) return; // a link that is replaced each second would lose the focus
      this.links.dataset.run = name ?? "";
      const link = (text, path) => {
        const anchor = element("a", "", text);
        anchor.href = new URL(path, this.base);
        return anchor;
      };
      const file = (text, path) => link(text, `runs/${encodeURIComponent(name)}/${path}`);
      this.links.replaceChildren(
        ...(name ? [file("Report", "report.html"), ...FILES.map((path) => file(path, path))] : []),
        link("Runs", "runs"),
        ...(this.alone ? [link("Locust", "../")] : []),
      );
    }
    // Build charts, tiles and the table of classes from the texts of a document.
    _buildView({ charts, tiles, columns, in_range }) {
      this.charts.begin(charts, in_range);
      this._buildTiles(tiles);
      this.columns = columns;
      const { section } = this.classes;
      this.classes = this._table("By class", ["Class", ...columns.map(({ title }) => title)]);
      this.classes.section.className = "il-classes";
      section.replaceWith(this.classes.section);
    }
    _buildTiles(tiles) {
      const tile = (title, unit) => {
        const box = element("div", "il-tile");
        const value = element("dd");
        const text = document.createTextNode("–");
        value.append(text, ...(unit ? [element("small", "", unit)] : []));
        box.append(element("dt", "", title), value);
        this.tiles.append(box);
        return { box, text };
      };
      this.tileOf = tiles.map((spec) => ({ ...spec, ...tile(spec.title, spec.unit) }));
      this.slo = tile("SLO, 1 min", "");
      this.slo.box.hidden = true;
    }
    _buildFilters() {
      this.bar = element("div", "il-filters");
      const select = (label, name, options, onChange) => {
        const wrap = element("label", "", label);
        const field = element("select");
        field.name = name;
        for (const [value, text] of options) field.append(new Option(text, value));
        field.addEventListener("change", () => onChange(field.value));
        wrap.append(field);
        this.bar.append(wrap);
        return { wrap, field };
      };
      const again = (name) => (value) => {
        this.filters[name] = value;
        this._fetchAll();
      };
      select("Window", "il-window", [["", "Whole run"], ["120", "Last 2 min"], ["600", "Last 10 min"]], (value) => {
        this.charts.span_s = value ? Number(value) : null;
        this.charts.zoom(null);
      });
      this.classFilter = select("Class", "il-class", [["", "All"]], again("class"));
      this.targetFilter = select("Server", "il-target", [["", "All"]], again("target"));
      this.reset = element("button", "", "Reset zoom");
      this.reset.type = "button";
      this.reset.addEventListener("click", () => this.charts.zoom(null));
      this.time = element("span", "");
      this.bar.append(this.reset, this.time);
    }
    _table(title, heads) {
      const section = element("section");
      const scroll = element("div", "il-scroll");
      scroll.tabIndex = 0; // a table that is wider than the page can be scrolled by the keyboard
      const table = element("table");
      if (title) table.setAttribute("aria-label", title);
      const row = element("tr");
      for (const text of heads) {
        const cell = element("th", "", text);
        cell.scope = "col";
        row.append(cell);
      }
      const head = element("thead");
      head.append(row);
      const body = element("tbody");
      table.append(head, body);
      scroll.append(table);
      if (title) section.append(element("h2", "", title));
      section.append(scroll);
      return { section, body };
    }
    _fill(table, rows) {
      const nodes = rows.map((cells) => {
        const row = element("tr");
        for (const { text, className, passed } of cells) {
          const cell = element("td", className, text);
          if (passed !== undefined) cell.dataset.passed = String(passed);
          row.append(cell);
        }
        return row;
      });
      table.body.replaceChildren(...nodes);
    }

    // -- polling

    async _poll() {
      clearTimeout(this.timer);
      if (this.closed) return;
      if (!this.root.isConnected) {
        this.timer = setTimeout(() => this._poll(), POLL_MS / 2); // another tab is selected
        return;
      }
      const serial = (this.serial = (this.serial || 0) + 1);
      let state = null;
      let fault = null;
      try {
        state = await this._fetch();
      } catch (error) {
        fault = `No connection to the load generator: ${error.message}`;
      }
      if (serial !== this.serial || this.closed) return; // a newer poll is in progress
      const idle = fault || document.hidden || !state.run || (state.run.over && !state.preparing);
      this.timer = setTimeout(() => this._poll(), idle ? SLOW_MS : POLL_MS);
      this.error.hidden = !fault;
      setText(this.error, fault ?? "");
      if (state) this._show(state);
    }
    async _fetch() {
      const query = new URLSearchParams();
      if (this.run && this.after && !this.stale) {
        query.set("run", this.run);
        query.set("after", String(this.after));
        query.set("marks", String(this.marksTo));
      }
      for (const [name, value] of Object.entries(this.filters)) if (value) query.set(name, value);
      const answer = await fetch(new URL(`live?${query}`, this.base), { headers: { Accept: "application/json" } });
      if (!answer.ok || !(answer.headers.get("Content-Type") || "").includes("json")) {
        throw new Error(answer.redirected ? "log in again" : `HTTP status ${answer.status}`);
      }
      return answer.json();
    }
    _fetchAll() {
      this.stale = true;
      this._poll();
    }
    // -- drawing

    _show(state) {
      this._theme();
      const { run } = state;
      this.body.hidden = !run;
      this.empty.hidden = Boolean(run);
      if (this.steer) this.steer.show(state);
      this._link(run?.run_name ?? null);
      if (!run) {
        this._showWithoutRun(state);
        return;
      }
      if (state.view && !this.columns) this._buildView(state.view);
      if (run.id !== this.run) this._begin(run);
      if (state.series.whole) {
        this.markList.replaceChildren();
        this.charts.marks = [];
      }
      this.stale = false;
      this._head(state);
      if (run.start_s !== null) {
        if (state.series.whole || state.series.points.t.length) this.charts.store.add(state.series, run.start_s);
        this.after = state.series.sequence;
        if (this.charts.store.t.length > MOST_POINTS) this.stale = true;
      }
      this._marks(state.marks);
      this._key(run.limits);
      this.marksTo = state.marks_to;
      this._options("class", this.classFilter, state.classes);
      this._options("target", this.targetFilter, state.targets);
      this.charts.update({ scraped: run.scraped.length > 0, start_s: run.start_s, limits: run.limits });
      this._tiles(state);
      this._tables(state);
      this._otherRequests(state.others);
      this._showTime();
      this._showValues();
    }
    _begin(run) {
      this.run = run.id;
      this.charts.store.clear();
      this.charts.zoomed = null;
      this.charts.index = null;
    }
    _showWithoutRun(state) {
      const [words, kind] = state.trouble
        ? [state.trouble, "trouble"]
        : [state.preparing ? "Preparing the run …" : "No run yet", "idle"];
      setText(this.badge, state.trouble ? "Not started" : words);
      this.badge.dataset.state = kind;
      setText(this.empty, state.trouble ? state.trouble : "Start a run to see its figures here.");
    }
    _head(state) {
      const { run, badge } = state;
      const phase = run.over ? "over" : run.draining ? "draining" : (run.phase ?? "about to begin");
      const label = run.over ? badge?.state : `${badge && badge.state !== "running" ? `${badge.state} · ` : ""}${phase}`;
      setText(this.badge, sentence(state.trouble && !state.preparing && !run.over ? "not started" : label || "over"));
      this.badge.dataset.state = badge?.state ?? "running";
      setText(this.name, run.scenario);
      const chips = [...(run.engine === "simulator" ? ["simulator"] : []), ...(run.steady && !run.over ? ["steady"] : [])];
      if (this.chips.dataset.texts !== chips.join()) {
        this.chips.dataset.texts = chips.join();
        this.chips.replaceChildren(...chips.map((text) => element("span", `il-chip il-${text}`, sentence(text))));
      }
      const left = run.left_s === null ? "" : ` · ${span(run.left_s)} left`;
      const turns = state.turns ? ` · ${number(state.turns.sent)} turns, ${number(state.turns.failed)} failed` : "";
      setText(this.facts, `${span(run.elapsed_s)}${left}${turns} · ${[...run.models, run.target].join(" · ")}`);
      const lines = [badge?.headline, ...(badge?.reasons ?? [])].filter((text) => text && text !== badge.state)
        .filter((text, place, all) => !all.some((other, at) => at !== place && other.startsWith(`${text};`))); // with its remedy
      if (state.trouble && state.trouble !== badge?.headline) lines.unshift(`The last start was refused: ${state.trouble}`);
      this.reasons.hidden = !lines.length;
      if (this.reasons.dataset.texts !== lines.join("\n")) {
        this.reasons.dataset.texts = lines.join("\n");
        this.reasons.replaceChildren(...lines.map((text) => element("li", "", text)));
      }
      this.measurement.hidden = !state.measurement || lines.some((line) => line.startsWith("would be ")); // said once
      setText(this.measurement, state.measurement ? `Client: ${state.measurement}` : "");
      const words = state.bottlenecks.map(({ target, code, probable, since_s, now, evidence }) => {
        const server = state.bottlenecks.length > 1 ? `${target}: ` : "";
        return [`${server}${probable ? "probably " : ""}${code} since ${clock(since_s)}: ${now}`, evidence];
      });
      const leftOut = state.left_out.map((text) => element("small", "", text));
      this.bottleneck.hidden = !words.length && !leftOut.length;
      this.bottleneck.replaceChildren(
        ...leftOut,
        ...words.flatMap(([head, evidence]) => [element("span", "", `Server: ${head}`), element("small", "", evidence)]),
      );
    }
    _marks(marks) {
      for (const mark of marks) {
        this.charts.marks.push(mark);
        const item = element("li");
        item.dataset.kind = kindOf(mark);
        item.dataset.sign = MARKS[kindOf(mark)].sign;
        item.append(element("time", "", clock(mark.at_s)), element("span", "", mark.text));
        this.markList.prepend(item);
      }
    }
    _options(filter, { wrap, field }, names) {
      wrap.hidden = names.length < 2;
      for (const name of names) {
        if (![...field.options].some((option) => option.value === name)) field.append(new Option(name, name));
      }
      for (const option of [...field.options]) if (option.value && !names.includes(option.value)) option.remove();
      if (field.value !== this.filters[filter]) {
        this.filters[filter] = field.value; // the selected option is gone: another run has begun
        this.stale = true;
      }
    }
    _tiles(state) {
      const { store } = this.charts;
      const rowOf = (name) => state.rows.find((row) => row.name === name);
      // After the run: figures of its measure phase.
      const measured = state.run.over ? (rowOf(this.filters.class || null) ?? state.rows[0]) : null;
      for (const { key, share: ofOne, server, text, box } of this.tileOf) {
        const value = measured ? (measured[key] ?? null) : store.newest(key);
        // An open loop has no users, and a server does not report all.
        box.hidden = measured ? !(key in measured) : (server || key === "users") && !store.has(key);
        setText(text, number(value === null ? null : value * (ofOne ? 100 : 1)));
      }
      this.tiles.setAttribute("aria-label", measured ? "Figures of the measure phase" : "Figures of the last 10 s");
      this.slo.box.hidden = state.slo_minute === null || state.slo_minute === undefined;
      setText(this.slo.text, share(state.slo_minute));
    }
    // Explain the looks of what the charts have: kinds of marks, and limits.
    _key(limits) {
      const kinds = Object.keys(MARKS).filter((kind) => this.charts.marks.some((mark) => mark.drawn && kindOf(mark) === kind));
      const texts = [...kinds, ...(limits.length ? ["limit"] : [])].join();
      if (this.key.dataset.kinds === texts) return;
      this.key.dataset.kinds = texts;
      const entries = kinds.map((kind) => {
        const item = element("li", "", `${MARKS[kind].sign} ${MARKS[kind].text}`.trim());
        item.prepend(sample(`mark-${kind}`, MARKS[kind].dash, true));
        return item;
      });
      if (limits.length) {
        entries.push(element("li", "", "Limit of SLO or gate (↑ above the axis)"));
        entries[entries.length - 1].prepend(sample("limit", [8, 4], false));
      }
      this.key.replaceChildren(...entries);
    }
    // Several classes are above the charts, on a narrow page at the top.
    _placeClasses(count) {
      const narrow = this.root.clientWidth < 760;
      const after = count < 2 ? this.others.section : narrow ? (this.steer?.node ?? this.tiles) : this.bar;
      const { section } = this.classes;
      if (section.nextElementSibling !== after) after.before(section);
    }
    _tables(state) {
      const passed = (gate) => (gate.passed === null ? "–" : gate.passed ? "Passed" : "Failed");
      this.gates.section.hidden = !state.gates.length;
      this._fill(
        this.gates,
        state.gates.map((gate) => [
          { text: gate.gate },
          { text: number(gate.value) },
          { text: passed(gate), className: "il-verdict", passed: gate.passed },
          { text: gate.note ?? "", className: "il-text" },
        ]),
      );
      this._placeClasses(state.rows.length - 1);
      this._fill(
        this.classes,
        state.rows.map((row) => [
          { text: row.name ?? `All (${state.figures_of})` },
          ...this.columns.map(({ key, share: ofOne, bad }) => ({
            text: ofOne ? share(row[key]) : number(row[key]),
            className: bad && row[key] ? "il-bad-count" : "",
          })),
        ]),
      );
    }
    _otherRequests(rows) {
      this.others.section.hidden = !rows.length;
      this._fill(
        this.others,
        rows.map((row) => [
          { text: `${row.type} ${row.name}` },
          { text: number(row.sent) },
          { text: number(row.failed), className: row.failed ? "il-bad-count" : "" },
          { text: number(row.p50_ms) },
          { text: number(row.p95_ms) },
          { text: row.first_error ?? "", className: "il-text" },
        ]),
      );
    }
    _showTime() {
      const at = this.charts.time();
      this.reset.hidden = !this.charts.zoomed;
      setText(this.time, at === null ? "Drag to zoom; arrow keys move the cursor." : `at ${clock(at)}`);
    }
    _showValues() {
      if (!this.details.open) return;
      const { store } = this.charts;
      const rows = [];
      for (const chart of this.charts.charts) {
        for (const { key, label } of chart.lines) {
          const known = (part) => store.values(key, part).filter((value) => value !== null);
          const all = [...known("mean"), ...known("low"), ...known("high")].map((value) => value * chart.factor);
          const value = store.newest(key);
          rows.push([
            { text: `${chart.heading.textContent}: ${label}` },
            { text: number(value === null ? null : value * chart.factor) },
            { text: number(all.length ? all.reduce((a, b) => Math.min(a, b)) : null) },
            { text: number(all.length ? all.reduce((a, b) => Math.max(a, b)) : null) },
          ]);
        }
      }
      this._fill(this.valueTable, rows);
    }
    _theme() {
      let dark = this.media.matches;
      if (!this.alone) {
        // Locust's own toggle changes the page's background.
        const parts = getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g)?.map(Number);
        if (parts && parts[3] !== 0) dark = parts[0] * 0.3 + parts[1] * 0.6 + parts[2] * 0.1 < 128;
      }
      const theme = dark ? "dark" : "light";
      if (this.root.dataset.theme === theme) return;
      this.root.dataset.theme = theme;
      this.charts?.redraw();
    }
    close() {
      this.closed = true;
      clearTimeout(this.timer);
      this.charts.destroy();
    }
  }

  window.inferloadLive = { mount: (root, base, alone) => new View(root, base, alone) };
})();
