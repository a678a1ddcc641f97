"""What a reader sees of an open page: texts that are cut or lie on each other, measured on the DOM, and axe-core's findings."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chromium
from chromium import Browser

WIDTHS = (390, 1440, 1920)  # phone, laptop, desktop
HEIGHT = 900
# Parts of its page that Locust alone renders: buttons of the header (one without a name, one of a low contrast) and of dialogs.
LOCUST_ALONE = "header, .MuiIconButton-root"
AXE = Path(__file__).parent.parent.parent / ".cache" / "axe" / "axe_playwright_python" / "axe.min.js"  # make browser

# Texts may share a third of their height: boxes of lines are higher than their letters. A text that its `title` repeats may be cut.
_MEASURE = """
const within = arguments[0] ? document.querySelector(arguments[0]) : document.body;
const wide = document.documentElement.clientWidth;
const scrolls = style => ['auto', 'scroll'].includes(style.overflowX);
const clips = style => style.overflowX !== 'visible' || style.overflowY !== 'visible';
const seen = new Map();   // element -> {clip, scrolled, layer}, of itself and what is around it
const around = node => {
  if (!node || node === document) return {clip: null, scrolled: false, layer: null, hidden: false};
  if (seen.has(node)) return seen.get(node);
  const outer = around(node.parentElement), style = getComputedStyle(node), box = node.getBoundingClientRect();
  const root = node === document.documentElement || node === document.body;
  let clip = outer.clip;
  if (!root && clips(style) && !(node instanceof SVGElement)) {
    const own = {left: box.left, top: box.top, right: box.right, bottom: box.bottom};
    clip = clip ? {left: Math.max(clip.left, own.left), top: Math.max(clip.top, own.top),
                   right: Math.min(clip.right, own.right), bottom: Math.min(clip.bottom, own.bottom)} : own;
  }
  const found = {
    clip, scrolled: outer.scrolled || (!root && scrolls(style)),
    layer: ['fixed', 'sticky', 'absolute'].includes(style.position) && style.zIndex !== 'auto' ? node : outer.layer,
    hidden: outer.hidden || Number(style.opacity) === 0 || style.clip === 'rect(0px, 0px, 0px, 0px)' ||
      (!(node instanceof SVGElement) && style.overflow === 'hidden' && box.width <= 1.5 && box.height <= 1.5),
  };
  seen.set(node, found);
  return found;
};
const texts = [], cut = [];
const walker = document.createTreeWalker(within, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const text = node.data.trim(), parent = node.parentElement;
  if (!text || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'TITLE', 'OPTION'].includes(parent.tagName)) continue;
  if (!parent.checkVisibility({checkVisibilityCSS: true, checkOpacity: true})) continue;
  const frame = around(parent), repeated = parent.closest('[title]')?.title.includes(text);
  if (frame.hidden) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  for (const {left, top, right, bottom} of range.getClientRects()) {
    if (right - left < 1 || bottom - top < 1) continue;
    let shown = {left, top, right, bottom};
    if (frame.clip) {
      shown = {left: Math.max(left, frame.clip.left), top: Math.max(top, frame.clip.top),
               right: Math.min(right, frame.clip.right), bottom: Math.min(bottom, frame.clip.bottom)};
      const less = shown.right < right - 2 || shown.left > left + 2 || shown.bottom < bottom - 4 || shown.top > top + 4;
      if (!frame.scrolled && !repeated && less)
        cut.push(`${text.slice(0, 60)} (cut by its box)`);
    }
    if (!frame.scrolled && (right > wide + 1 || left < -1)) cut.push(`${text.slice(0, 60)} (beyond the window)`);
    if (shown.right - shown.left > 1 && shown.bottom - shown.top > 1)
      texts.push({text: text.slice(0, 60), node, layer: frame.layer, ...shown});
  }
}
texts.sort((a, b) => a.top - b.top);
const overlapping = [];
texts.forEach((one, at) => {
  for (let next = at + 1; next < texts.length && texts[next].top < one.bottom; next++) {
    const other = texts[next];
    if (other.node === one.node || other.layer !== one.layer) continue;
    const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
    if (across > 2 && down > 0.35 * Math.min(one.bottom - one.top, other.bottom - other.top))
      overlapping.push(`${one.text} | ${other.text}`);
  }
});
return {width: document.documentElement.scrollWidth, window: wide, cut: [...new Set(cut)], overlapping: [...new Set(overlapping)]};
"""

_AXE = """
const [within, besides, done] = arguments;
const only = {type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']};
const places = nodes => nodes.slice(0, 3).map(({target}) => target.join(' ')).join(', ');
const context = {include: [within || 'html'], exclude: besides ? [besides] : []};
axe.run(context, {runOnly: only, resultTypes: ['violations']}).then(({violations}) => done(violations
  .filter(({impact}) => ['serious', 'critical'].includes(impact))
  .map(({id, impact, nodes}) => `${id} (${impact}): ${places(nodes)}, ${nodes.length} in all`)),
  error => done([String(error)]));
"""


# Charts follow a new size of the window in a later task: the layout is measured once it has stayed for some frames.
_STEADY = """
const [done] = arguments, started = performance.now();
let last = '', same = 0;
const look = () => {
  const now = JSON.stringify([...document.querySelectorAll('svg, canvas, table')].map(node => node.getBoundingClientRect().width));
  same = now === last ? same + 1 : 0;
  last = now;
  if (same < 12 && performance.now() - started < 5000) requestAnimationFrame(look); else done();
};
look();
"""


def faults(browser: Browser, width: int, within: str = "", colours: str = "light") -> list[str]:
    """Return texts that are cut or lie on others at a width (pixels), and a page wider than that. `within`: CSS selector."""
    chromium.show_as(browser, width, HEIGHT, colours)
    browser.execute_async_script(_STEADY)
    found: dict[str, Any] = browser.execute_script(_MEASURE, within)
    wider = [f"the page is {found['width']} px wide in a window of {found['window']} px"] * (
        found["width"] > found["window"]
    )
    return (
        wider + [f"cut: {text}" for text in found["cut"]] + [f"on each other: {pair}" for pair in found["overlapping"]]
    )


def axe_findings(browser: Browser, within: str = "", besides: str = "") -> list[str]:
    """Return axe-core's serious and critical findings of the open page. `within`, `besides`: CSS selectors."""
    browser.execute_script(_axe_source())
    found: list[str] = browser.execute_async_script(_AXE, within, besides)
    return found


def findings(
    browser: Browser, widths: Sequence[int] = WIDTHS, besides: str = "", colours: str = "light"
) -> dict[int, list[str]]:
    """Return what `faults` and `axe_findings` find at each width, by width; then the window is as at the start of the browser."""
    try:
        found = {
            width: faults(browser, width, colours=colours) + axe_findings(browser, besides=besides) for width in widths
        }
    finally:
        chromium.show_as_started(browser)
    return {width: texts for width, texts in found.items() if texts}


@functools.cache
def _axe_source() -> str:
    assert AXE.is_file(), "no axe-core: make browser"
    return AXE.read_text()
