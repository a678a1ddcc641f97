// Steering of a run: users of a closed loop, or the rate of an open loop; at once or as a ramp. `stop` has a place of its own, which
// no text moves.
(() => {
  const { element, number } = window.inferloadCharts;

  class Panel {
    constructor(base, onChange) {
      this.base = base;
      this.onChange = onChange;
      this.node = element("form", "il-steer");
      this.node.setAttribute("aria-label", "Steer the load");
      this.node.addEventListener("submit", (event) => event.preventDefault());
      this.now = element("span", "il-now");
      const less = this._button("−", () => this._step(-1), "", "less load");
      const more = this._button("+", () => this._step(1), "", "more load");
      this.level = this._field("il-level", "new level");
      this.apply = this._button("Set", () => this._send({ do: "set", level: this._value(this.level) }));
      this.to = this._field("il-ramp-to", "level at the end of the ramp");
      this.over = this._field("il-ramp-over", "duration of the ramp");
      this.over.type = "text";
      this.over.value = "2m";
      this.ramp = this._button("Ramp", () => this._ramp());
      this.hold = this._button("Hold", () => this._send({ do: "hold" }));
      this.stop = this._button("Stop run", () => this._send({ do: "stop" }), "il-stop");
      const group = (...parts) => {
        const node = element("span", "il-group");
        node.append(...parts);
        return node;
      };
      this.unit = element("span", "", "");
      this.error = element("span", "il-error");
      this.error.setAttribute("role", "alert");
      this.error.id = `il-steer-error-${Math.random().toString(36).slice(2)}`;
      this.controls = [less, more, this.level, this.apply, this.to, this.over, this.ramp];
      this.node.append(
        this.now,
        group(less, more, this.level, this.apply),
        group(element("span", "", "to"), this.to, this.unit, element("span", "", "over"), this.over, this.ramp, this.hold),
        this.error,
      );
      for (const [field, button] of [
        [this.level, this.apply],
        [this.to, this.ramp],
        [this.over, this.ramp],
      ]) {
        field.addEventListener("keydown", (event) => {
          if (event.key === "Enter") button.click();
        });
        field.addEventListener("input", () => this._fault(null));
      }
    }
    _button(text, action, className = "", label = "") {
      const button = element("button", className, text);
      button.type = "button";
      if (label) button.setAttribute("aria-label", label);
      button.addEventListener("click", action);
      return button;
    }
    _field(name, label) {
      const field = element("input");
      field.name = name;
      field.type = "number";
      field.min = "0";
      field.step = "any";
      field.inputMode = "decimal";
      field.setAttribute("aria-label", label);
      return field;
    }
    _value(field) {
      return field.value.trim() === "" ? null : Number(field.value);
    }
    // "90", "90s", "2m", "1h30m" in seconds; NaN for other text.
    _seconds(text) {
      const units = { h: 3600, m: 60, min: 60, s: 1 };
      const words = text.trim();
      if (/^\d+(\.\d+)?$/.test(words)) return Number(words);
      if (!/^(\d+(\.\d+)?\s*(h|min|m|s)\s*)+$/.test(words)) return NaN;
      return [...words.matchAll(/(\d+(?:\.\d+)?)\s*(h|min|m|s)/g)].reduce((sum, [, n, unit]) => sum + n * units[unit], 0);
    }
    _ramp() {
      const seconds = this._seconds(this.over.value);
      if (Number.isNaN(seconds)) return this._fault("duration: write it as 90s or 2m", this.over);
      return this._send({ do: "ramp", level: this._value(this.to), over_s: seconds }, this.to);
    }
    _step(sign) {
      if (!this.state) return;
      const level = this.state.ramp ? this.state.ramp.to : this.state.level;
      const by = this.state.whole ? Math.max(1, Math.round(level * 0.1)) : level * 0.1 || 0.1;
      const next = Math.max(this.state.whole ? 1 : 0, level + sign * by);
      this._send({ do: "set", level: this.state.whole ? Math.round(next) : Number(next.toPrecision(3)) });
    }
    async _send(order, field = this.level) {
      if (order.level === null) return this._fault("level: enter a number", field);
      this._fault(null);
      try {
        const answer = await fetch(new URL("steer", this.base), {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(order),
        });
        const state = await answer.json().catch(() => ({}));
        if (!answer.ok) {
          return this._fault(state.error ?? state.message ?? `HTTP status ${answer.status}`, field);
        }
      } catch (error) {
        return this._fault(`not sent: ${error.message}`, field);
      }
      return this.onChange();
    }
    _fault(text, field = null) {
      this.error.textContent = text ?? "";
      for (const input of [this.level, this.to, this.over]) {
        const bad = Boolean(text) && input === field;
        input.setAttribute("aria-invalid", String(bad));
        if (bad) input.setAttribute("aria-describedby", this.error.id);
      }
    }
    show(state) {
      const { steer, run } = state;
      this.state = steer;
      const ended = !run || run.over;
      const ending = !ended && (run.draining || !["warmup", "measure", null].includes(run.phase));
      this.node.hidden = ended;
      this.stop.hidden = ended && !state.preparing;
      for (const control of this.controls) control.disabled = !steer;
      this.stop.disabled = ending;
      this.hold.disabled = !steer?.ramp;
      if (!steer) {
        this.now.textContent = ending ? "Draining" : "Not steerable";
        return;
      }
      const { level, unit, ramp, whole } = steer;
      const text = `${number(level)} ${unit}`;
      const words = ramp ? `${text} → ${number(ramp.to)} (${Math.ceil(ramp.left_s)} s)` : text;
      if (this.now.textContent !== words) this.now.textContent = words;
      this.unit.textContent = unit;
      this.apply.textContent = `Set ${whole ? "users" : "rate"}`;
      for (const field of [this.level, this.to]) field.step = whole ? "1" : "any";
      if (!this.level.placeholder) this.level.placeholder = this.to.placeholder = number(level);
    }
  }

  window.inferloadSteer = { Panel };
})();
