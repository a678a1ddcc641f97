// One line at the foot of Locust's page: the current run, or the reason why the last start was refused.
(() => {
  const line = document.createElement("div");
  line.id = "inferload-line";
  line.setAttribute("role", "status");
  line.style.cssText =
    "position:fixed;left:0;right:0;bottom:0;z-index:2000;pointer-events:none;padding:8px 16px;font:14px/1.4 system-ui,sans-serif;" +
    "color:#fff;background:#37474f;display:none;white-space:pre-wrap";
  const words = document.createElement("span");
  line.appendChild(words);
  document.body.appendChild(line);
  document.body.style.paddingBottom = "44px"; // covered content can be scrolled into view
  const colours = {
    trouble: "#b71c1c",
    failed: "#b71c1c",
    "stopped early": "#bf4300",
    invalid: "#b71c1c",
    suspect: "#bf4300",
    passed: "#1b5e20",
    run: "#37474f",
  };
  const title = document.title;

  const runs = "./inferload/runs";
  const link = (text, address) => {
    const anchor = document.createElement("a");
    anchor.textContent = text;
    anchor.href = address;
    anchor.style.cssText = "display:inline-block;color:inherit;pointer-events:auto;margin-left:14px;text-decoration:underline";
    return anchor;
  };
  // Clicks pass through to the page, except on links.
  const links = document.createElement("span");
  links.setAttribute("role", "group");
  links.setAttribute("aria-label", "after the run");
  line.appendChild(links);
  const showLinks = (name) => {
    if (links.dataset.run === (name || "")) return; // a link that is replaced each second would lose the focus
    links.dataset.run = name || "";
    links.replaceChildren(
      ...(name ? [link("report", `${runs}/${encodeURIComponent(name)}/report.html`), link("runs", runs)] : []),
    );
  };

  const sentence = (state) => {
    const simulator = state.engine === "simulator" ? " · simulator" : "";
    if (state.phase || state.draining) {
      const lost = (state.workers_lost || []).length ? ` · lost: ${state.workers_lost.join(", ")}` : "";
      const load = state.load ? ` · ${state.load}` : "";
      const doubt = (state.measurement_so_far || "").startsWith("would") ? ` · measurement ${state.measurement_so_far}` : "";
      const phase = state.draining ? "draining" : state.phase;
      return [
        `${state.scenario}${simulator} · ${phase} · ${state.elapsed_s} s${load} · ${state.in_flight} in flight${state.steady ? " · steady" : ""}${lost}${doubt} · ${state.run_dir}`,
        lost ? "invalid" : doubt ? "suspect" : "run",
      ];
    }
    if (state.preparing) return ["preparing the run …", "run"];
    // A refused start leaves the outcome of the last run; its form has the reason.
    const refused = state.trouble && !document.querySelector("form input[name=userCount]");
    const also = refused ? ` · the last start was refused: ${state.trouble}` : "";
    if (state.headline) return [`${state.headline}${simulator} · ${state.run_dir}${also}`, state.outcome];
    return state.trouble ? [state.trouble, "trouble"] : ["", "run"];
  };

  const refresh = async () => {
    try {
      const answer = await fetch("./inferload/status");
      if (answer.ok) {
        const state = await answer.json();
        document.dispatchEvent(new CustomEvent("inferload-status", { detail: state }));
        const [text, colour] = sentence(state);
        document.title = state.headline ? `${state.headline} · ${title}` : title;
        line.dataset.state = colour;
        words.textContent = text;
        showLinks(state.run_name);
        line.style.background = colours[colour] || colours.run;
        line.style.display = text ? "block" : "none";
      }
    } catch (error) {
      line.style.display = "none"; // Locust's page reports a lost server
    }
    setTimeout(refresh, 1000);
  };
  refresh();
})();
