// A search that goes on by itself, look by look, until it is stopped.
"use strict";

document.addEventListener("click", (event) => {
  if (event.target.id !== "stop") return;
  event.target.remove();
  // The link goes on where the page ends, so what comes of the look under way is not wanted.
  document.addEventListener("htmx:beforeSwap", (swap) => swap.preventDefault());
});
