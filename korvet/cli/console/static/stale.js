// A page that refreshes itself says so when it could not.
"use strict";

const stale = document.getElementById("stale");
const say = (event) => {
  if (stale.hidden) {
    const status = event.detail.xhr.status;
    const why = status ? `the console answers ${status}` : "the console does not answer";
    stale.textContent = `Since ${shownTime(new Date())} this page is not up to date: ${why}. Load it again to see why.`;
    stale.hidden = false;
  }
};
document.addEventListener("htmx:responseError", say);
document.addEventListener("htmx:sendError", say);
document.addEventListener("htmx:afterSwap", () => { stale.hidden = true; });
