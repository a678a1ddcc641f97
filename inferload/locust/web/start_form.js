// The start form: scenario first with its description, the values that a run of it uses, gates, and errors at their field.
(() => {
  const base = new URL("../", document.currentScript.src);
  const filled = new WeakSet();
  const typed = new WeakSet(); // fields changed by hand since the scenario was chosen: they stay as they are
  const OWN = "locustfile"; // label of the empty choice: own tasks, or the scenarios of the user classes
  const NAMES = ["userCount", "spawnRate", "runTime", "host", "model", "seed", "gates"]; // fields with values of the server
  const FIELD =
    "font:16px system-ui,sans-serif;padding:12px;border-radius:4px;border:1px solid #8888;background:transparent;color:inherit;width:100%;box-sizing:border-box";
  const BOX = "font:14px/1.45 system-ui,sans-serif;display:grid;gap:6px;overflow-wrap:anywhere";
  let again = new URLSearchParams(location.search).get("again"); // earlier run whose values the form gets
  let dismissed = null; // error that was answered by a change of the form
  let factor = null; // of the form: in an open loop the number of users is a factor of the rate
  let running = null; // state of the run under way
  const field = (form, name) => form.querySelector(`[name="${CSS.escape(name)}"]`);
  const fields = (form) => NAMES.map((name) => field(form, name)).filter(Boolean);
  const scenarioOf = (form) => form.querySelector("select[name=scenario]");
  const isNew = (form) => Boolean(field(form, "host")); // the form that changes a run has none
  const make = (name, id, css, text = "") => {
    const node = document.createElement(name);
    node.id = id;
    node.style.cssText = css;
    node.textContent = text;
    return node;
  };
  const setText = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };
  const setValue = (input, text) => {
    const kind = Object.getPrototypeOf(input);
    Object.getOwnPropertyDescriptor(kind, "value").set.call(input, text); // React reads the event
    input.dispatchEvent(new Event(input instanceof HTMLSelectElement ? "change" : "input", { bubbles: true }));
  };

  // Locust writes the help of a parameter into its label, where it is cut: it goes below the field. React keeps the nodes.
  const explain = (form) => {
    for (const label of form.querySelectorAll(".MuiAccordion-root .MuiFormControl-root label")) {
      const [, name, help] = /^([^(]+) \((.*)\)$/s.exec(label.firstChild?.nodeValue ?? "") ?? [];
      if (!name) continue;
      const box = label.closest(".MuiFormControl-root");
      for (const node of [label, box.querySelector("legend span")]) if (node?.firstChild) node.firstChild.nodeValue = name;
      const text = make("div", `${label.htmlFor || label.id}-help`, "font:13px/1.4 system-ui,sans-serif;opacity:.85;margin-top:4px", help);
      box.append(text);
      box.querySelector("input, select, textarea")?.setAttribute("aria-describedby", text.id);
    }
  };

  // A select at the top of the form, in place of the one among the custom parameters.
  const head = (form) => {
    const existing = form.querySelector("#inferload-scenario");
    if (existing) return existing;
    const source = scenarioOf(form);
    source.closest(".MuiFormControl-root").style.display = "none";
    const box = make("div", "inferload-scenario", BOX);
    const label = make("label", "inferload-scenario-label", "font-weight:600", "Scenario");
    const select = make("select", "inferload-scenario-select", FIELD);
    label.htmlFor = select.id;
    for (const option of source.options) {
      const own = new Option(option.text || OWN, option.value);
      own.style.color = "#111"; // a list of a dark page has a light background in some browsers
      own.style.background = "#fff";
      select.append(own);
    }
    select.value = source.value;
    select.setAttribute("aria-describedby", "inferload-about inferload-load inferload-note");
    select.addEventListener("change", () => setValue(source, select.value));
    const runs = make("a", "inferload-runs", "color:inherit;justify-self:start", "earlier runs");
    runs.href = new URL("runs", base);
    const text = (id) => make("div", id, "opacity:.85");
    const refused = make("details", "inferload-refused", "");
    refused.hidden = true;
    refused.append(make("summary", "inferload-refused-count", "cursor:pointer"), make("ul", "inferload-refused-list", "margin:4px 0"));
    const note = make("div", "inferload-note", "border-left:4px solid #e65100;padding-left:8px");
    note.hidden = true;
    box.append(label, select, text("inferload-about"), text("inferload-load"), note, refused, runs);
    form.firstElementChild.prepend(box);
    form.querySelector(".MuiAccordion-root").before(gates());
    explain(form);
    return box;
  };
  const gates = () => {
    const box = make("div", "inferload-gates", BOX);
    const label = make("label", "inferload-gates-label", "", "Gates, one per line");
    const area = make("textarea", "inferload-gates-field", `${FIELD};resize:vertical`);
    const help = make("div", "inferload-gates-help", "font-size:13px;opacity:.85");
    help.textContent = "The run fails if one does not hold, such as p95(ttft_ms) < 900 or failed_ratio < 0.01; empty: if a turn fails.";
    area.name = "gates";
    area.rows = 2;
    area.spellcheck = false;
    area.setAttribute("aria-describedby", help.id);
    label.htmlFor = area.id;
    box.append(label, area, help);
    return box;
  };

  // Names the number of users as what it is, and states the rate of an open loop. React keeps the nodes that are changed here.
  const nameUsers = (form, of) => {
    const users = field(form, "userCount")?.closest(".MuiFormControl-root");
    const spawn = field(form, "spawnRate")?.closest(".MuiFormControl-root");
    if (!users || !spawn) return;
    const texts = [users.querySelector("label")?.firstChild, users.querySelector("legend span")?.firstChild];
    users.dataset.inferloadLabel ??= texts[0]?.nodeValue ?? "";
    const label = of?.label ?? users.dataset.inferloadLabel;
    for (const node of texts) if (node?.nodeType === Node.TEXT_NODE && node.nodeValue !== label) node.nodeValue = label;
    spawn.style.display = of ? "none" : ""; // an open loop starts no users
    let rate = users.querySelector("#inferload-rate");
    if (!of) return rate?.remove();
    if (!rate) {
      rate = make("div", "inferload-rate", "font:13px/1.4 system-ui,sans-serif;opacity:.85;margin-top:4px");
      users.append(rate);
      field(form, "userCount").setAttribute("aria-describedby", rate.id);
    }
    const value = Number(field(form, "userCount").value) * of.of;
    return setText(rate, `${Number(value.toPrecision(6))} ${of.unit}`);
  };

  const fill = async (source, query) => {
    const { form } = source;
    filled.add(source);
    const box = head(form);
    const chosen = source.value;
    box.querySelector("select").value = chosen;
    const answer = await fetch(new URL(`form${query}`, base));
    if (!answer.ok || source.value !== chosen) return;
    const values = await answer.json();
    if ("scenario" in values && values.scenario !== source.value) {
      filling = true;
      setValue(source, values.scenario);
      filling = false;
      box.querySelector("select").value = source.value;
    }
    for (const input of fields(form)) {
      if (input.name in values && !typed.has(input) && input.value !== values[input.name]) setValue(input, values[input.name]);
    }
    const area = field(form, "gates");
    area.rows = Math.max(2, area.value.split("\n").length);
    factor = values.factor ?? null;
    nameUsers(form, factor);
    const set = (id, text) => setText(box.querySelector(id), text);
    set("#inferload-about", values.about ?? "");
    if ("load" in values) set("#inferload-load", `${source.value || OWN}: ${values.load}`);
    set("#inferload-note", values.note ?? "");
    box.querySelector("#inferload-note").hidden = !values.note;
    await markRefused(form, box);
  };
  let filling = false;

  // Scenarios that cannot start here stay in the list, with the reason below it.
  const markRefused = async (form, box) => {
    const answer = await fetch(new URL("scenarios", base));
    if (!answer.ok) return;
    const reasons = Object.entries(await answer.json());
    for (const select of [box.querySelector("select"), scenarioOf(form)].filter(Boolean)) {
      for (const option of select.options) option.disabled = reasons.some(([name]) => name === option.value);
    }
    const details = box.querySelector("#inferload-refused");
    details.hidden = !reasons.length;
    const count = `${reasons.length} scenario${reasons.length === 1 ? "" : "s"} cannot start here`;
    setText(details.querySelector("summary"), count);
    const items = reasons.map(([name, reason]) => make("li", "", "", `${name || OWN}: ${reason}`));
    details.querySelector("ul").replaceChildren(...items);
  };

  const showError = (trouble, name) => {
    const old = document.getElementById("inferload-field-error");
    const form = document.querySelector("form:has(input[name=userCount])");
    const input =
      name === "scenario" ? form?.querySelector("#inferload-scenario-select") : form && field(form, name ?? "");
    if (!trouble || trouble === dismissed || !input) {
      old?.remove();
      document.querySelectorAll("[data-inferload-invalid]").forEach((each) => {
        each.removeAttribute("data-inferload-invalid");
        each.removeAttribute("aria-errormessage");
        each.setAttribute("aria-invalid", "false");
      });
      return;
    }
    if (old?.textContent === trouble && old.previousElementSibling?.contains(input)) return;
    old?.remove();
    const text = make(
      "div",
      "inferload-field-error",
      "font:13px/1.4 system-ui,sans-serif;border-left:4px solid #d32f2f;padding-left:8px;overflow-wrap:anywhere;margin-top:-24px",
      trouble,
    );
    text.setAttribute("role", "alert");
    input.closest(".MuiAccordion-root")?.querySelector(".MuiAccordionSummary-root[aria-expanded=false]")?.click();
    const around = [".MuiFormControl-root", "#inferload-scenario", "#inferload-gates"].map((css) => input.closest(css));
    (around.find(Boolean) ?? input).after(text);
    input.dataset.inferloadInvalid = "";
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-errormessage", text.id);
  };

  let shown = null;
  document.addEventListener("inferload-status", ({ detail }) => {
    shown = detail.trouble;
    running = detail;
    if (!detail.trouble) dismissed = null;
    if (detail.phase && again !== null) {
      again = null; // that run has begun
      const url = new URL(location);
      url.searchParams.delete("again");
      history.replaceState(history.state, "", url);
    }
    showError(detail.trouble, detail.trouble_field);
  });
  document.addEventListener("submit", () => (dismissed = null), true);
  document.addEventListener("input", (event) => {
    const { form } = event.target;
    if (form && field(form, "userCount") === event.target) nameUsers(form, isNew(form) ? factor : running?.factor);
    if (!event.isTrusted) return;
    typed.add(event.target);
    if (form && field(form, "userCount")) {
      dismissed = shown;
      showError(null, null);
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.name !== "scenario" || filling || !isNew(event.target.form)) return;
    for (const input of fields(event.target.form)) if (input.name !== "host") typed.delete(input);
    fill(event.target, `?scenario=${encodeURIComponent(event.target.value)}`);
  });

  const refresh = async () => {
    try {
      const form = document.querySelector("form:has(input[name=userCount])");
      const source = form && scenarioOf(form);
      if (source && isNew(form) && (!filled.has(source) || !form.querySelector("#inferload-scenario"))) {
        await fill(source, again === null ? "" : `?run=${encodeURIComponent(again)}`);
      }
      const users = form && field(form, "userCount");
      if (users && !isNew(form) && !filled.has(users) && running?.users) {
        filled.add(users); // the number may have changed since the start
        if (!typed.has(users)) setValue(users, String(running.users));
      }
      if (form) nameUsers(form, isNew(form) ? factor : running?.factor);
      if (!form && again !== null) newButton()?.click();
    } finally {
      setTimeout(refresh, 500);
    }
  };
  // Opens the form over the figures of an ended run.
  const newButton = () => [...document.querySelectorAll("button")].find((button) => button.textContent.trim() === "New");
  refresh();
})();
