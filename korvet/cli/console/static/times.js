// Times in UTC or in the browser's zone, by one switch for all pages. Both have the form of ISO 8601.
"use strict";

const zone = document.getElementById("zone");
let isLocal = false;
try { isLocal = localStorage.getItem("zone") === "local"; } catch { /* Without storage the switch lasts for a page. */ }

const shownTime = (date) => {
  if (!isLocal) return date.toISOString();
  const minutes = -date.getTimezoneOffset();
  const two = (number) => String(number).padStart(2, "0");
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60].map(two);
  const here = new Date(date.getTime() + minutes * 60000).toISOString().slice(0, -1);
  return `${here}${minutes < 0 ? "-" : "+"}${hours}:${rest}`;
};
const showTimes = () => {
  zone.textContent = isLocal ? "local times" : "UTC";
  for (const time of document.querySelectorAll("time")) time.textContent = shownTime(new Date(time.dateTime));
  document.dispatchEvent(new Event("zone"));
};

zone.hidden = false;
zone.addEventListener("click", () => {
  isLocal = !isLocal;
  try { localStorage.setItem("zone", isLocal ? "local" : "utc"); } catch { /* As above. */ }
  showTimes();
});
document.addEventListener("htmx:afterSwap", showTimes);
document.addEventListener("htmx:oobAfterSwap", showTimes);
showTimes();
