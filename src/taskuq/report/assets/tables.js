// Tables wider than their box show that they scroll: a fade at the edge, and a cue in words.
"use strict";

(() => {
  const update = (box) => {
    const rest = box.scrollWidth - box.clientWidth;
    box.parentElement.classList.toggle("scrolls", rest > 1);
    box.parentElement.classList.toggle("ended", rest - box.scrollLeft <= 1);
  };
  const observer = new ResizeObserver((entries) => entries.forEach((e) => update(e.target.closest(".scroll"))));
  for (const box of document.querySelectorAll(".scroll")) {
    observer.observe(box);
    observer.observe(box.firstElementChild);
    box.addEventListener("scroll", () => update(box), { passive: true });
  }
})();
