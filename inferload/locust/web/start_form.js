// The start form: scenario first with its description, the values that a run of it uses, and errors at their field.
(() => {
  const base = new URL("../", document.currentScript.src);
  const filled = new WeakSet();
  const typed = new WeakSet(); // fields changed by hand since the scenario was chosen: they stay as they are
  const OWN = "locustfile"; // label of the empty choice: own tasks, or the scenarios of the user classes
  let dismissed = null; // error that was answered by a change of the form
  const fields = (form) => ["userCount", "spawnRate", "runTime"].map((name) => form.querySelector(`input[name=${name}]`));
  const scenarioOf = (form) => form.querySelector("select[name=scenario]");
  const make = (name, id, css, text = "") => {
    const node = document.createElement(name);
    node.id = id;
    node.style.cssText = css;
    node.textContent = text;
    return node;
  };
  const setValue = (input, text) => {
    const kind = input instanceof HTMLSelectElement ? HTMLSelectElement : HTMLInputElement;
    Object.getOwnPropertyDescriptor(kind.prototype, "value").set.call(input, text); // React reads the event
    input.dispatchEvent(new Event(kind === HTMLSelectElement ? "change" : "input", { bubbles: true }));
  };

  // A select at the top of the form that mirrors the one among the custom parameters.
  const head = (form) => {
    const existing = form.querySelector("#inferload-scenario");
    if (existing) return existing;
    const source = scenarioOf(form);
    const box = make("div", "inferload-scenario", "font:14px/1.45 system-ui,sans-serif;display:grid;gap:6px");
    const label = make("label", "inferload-scenario-label", "font-weight:600", "Scenario");
    const select = make(
      "select",
      "inferload-scenario-select",
      "font:16px system-ui,sans-serif;padding:12px;border-radius:4px;border:1px solid #8888;background:transparent;color:inherit;width:100%",
    );
    label.htmlFor = select.id;
    for (const option of source.options) {
      const own = new Option(option.text || OWN, option.value);
      own.style.color = "#111"; // a list of a dark page has a light background in some browsers
      own.style.background = "#fff";
      select.append(own);
    }
    select.value = source.value;
    select.setAttribute("aria-describedby", "inferload-about inferload-load");
    select.addEventListener("change", () => setValue(source, select.value));
    const runs = make("a", "inferload-runs", "color:inherit;justify-self:start", "earlier runs");
    runs.href = new URL("runs", base);
    const text = (id) => make("div", id, "opacity:.85");
    box.append(label, select, text("inferload-about"), text("inferload-load"), runs);
    form.firstElementChild.prepend(box);
    return box;
  };

  const fill = async (source) => {
    const { form, value: chosen } = source;
    filled.add(source);
    const box = head(form);
    box.querySelector("select").value = chosen;
    const answer = await fetch(new URL(`form?scenario=${encodeURIComponent(chosen)}`, base));
    if (!answer.ok || source.value !== chosen) return;
    const values = await answer.json();
    for (const input of fields(form).filter(Boolean)) {
      if (input.name in values && !typed.has(input)) setValue(input, values[input.name]);
    }
    box.querySelector("#inferload-about").textContent = values.about ?? "";
    box.querySelector("#inferload-load").textContent = `${chosen || OWN}: ${values.load}`;
  };

  const showError = (trouble, name) => {
    const old = document.getElementById("inferload-field-error");
    const form = document.querySelector("form:has(input[name=userCount])");
    const field =
      name === "scenario"
        ? form?.querySelector("#inferload-scenario-select")
        : form && form.querySelector(`[name="${CSS.escape(name ?? "")}"]`);
    if (!trouble || trouble === dismissed || !field) {
      old?.remove();
      document.querySelectorAll("[data-inferload-invalid]").forEach((input) => {
        input.removeAttribute("data-inferload-invalid");
        input.removeAttribute("aria-errormessage");
        input.setAttribute("aria-invalid", "false");
      });
      return;
    }
    if (old?.textContent === trouble && old.previousElementSibling?.contains(field)) return;
    old?.remove();
    const text = make(
      "div",
      "inferload-field-error",
      "font:13px/1.4 system-ui,sans-serif;color:#d32f2f;overflow-wrap:anywhere;margin-top:-24px",
      trouble,
    );
    text.setAttribute("role", "alert");
    (field.closest(".MuiFormControl-root") ?? field.closest("#inferload-scenario") ?? field).after(text);
    field.dataset.inferloadInvalid = "";
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-errormessage", text.id);
  };

  let shown = null;
  document.addEventListener("inferload-status", ({ detail }) => {
    shown = detail.trouble;
    if (!detail.trouble) dismissed = null;
    showError(detail.trouble, detail.trouble_field);
  });
  document.addEventListener("submit", () => (dismissed = null), true);
  document.addEventListener("input", (event) => {
    if (!event.isTrusted) return;
    typed.add(event.target);
    if (event.target.form?.querySelector("input[name=userCount]")) {
      dismissed = shown;
      showError(null, null);
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.name !== "scenario") return;
    for (const input of fields(event.target.form)) typed.delete(input);
    fill(event.target);
  });

  const refresh = async () => {
    try {
      const source = document.querySelector("form select[name=scenario]");
      if (source && (!filled.has(source) || !source.form.querySelector("#inferload-scenario"))) await fill(source);
    } finally {
      setTimeout(refresh, 500);
    }
  };
  refresh();
})();
