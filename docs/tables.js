// A table that is wider than the page is scrolled in its frame; with this also from the keyboard.
addEventListener("load", () => {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap"))
    if (frame.scrollWidth > frame.clientWidth) frame.tabIndex = 0;
});
