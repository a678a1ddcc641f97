// A table that is wider than the screen scrolls: with the arrow keys too, once it has the focus. (The theme cares for code.)
const widened = new ResizeObserver(entries => {
  for (const { target } of entries) target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
const watch = () => document.querySelectorAll(".md-typeset__scrollwrap").forEach(box => widened.observe(box));
watch();
new MutationObserver(watch).observe(document.body, { childList: true, subtree: true }); // the theme adds the boxes
