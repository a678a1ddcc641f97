// Draws the picture in the reader's colours, and again when they change.
(async function () {
  "use strict";

  // What stands in the element as base64 of gzip.
  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  const library = document.createElement("script");
  library.textContent = await unpacked("plotly");
  document.head.append(library);

  const place = document.getElementById("picture");
  const figure = JSON.parse(document.getElementById("figure").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const layout = { "font.color": of("--text"), "hoverlabel.bgcolor": of("--card"), "hoverlabel.font.color": of("--text") };
    for (const name of Object.keys(figure.layout).filter((name) => /^[xy]axis/.test(name))) {
      layout[name + ".gridcolor"] = of("--line");
      layout[name + ".linecolor"] = of("--line");
      layout[name + ".zerolinecolor"] = of("--line");
    }
    return layout;
  }

  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  figure.layout.font = { family: getComputedStyle(document.body).fontFamily, size: 12 };
  Plotly.newPlot(place, figure.data, figure.layout, options).then(() => Plotly.relayout(place, colours()));
  dark.addEventListener("change", () => Plotly.relayout(place, colours()));
})();
