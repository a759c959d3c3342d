// The lag of the group: over the last hour, if a front-end knows it, and while its page is open.
"use strict";

const chart = document.getElementById("lag-chart");
const EVERY_MS = 5000;
const LEAST_S = 60;
const MOST_POINTS = 2000;

if (chart) {
  const style = getComputedStyle(document.documentElement);
  const text = style.getPropertyValue("--quiet");
  const line = style.getPropertyValue("--line");
  const points = [[], []];
  const axis = { stroke: text, grid: { stroke: line }, ticks: { stroke: line } };
  const time = { ...axis, values: (_, seconds) => seconds.map((one) => shownTime(new Date(one * 1000)).slice(11, 19)) };
  // uPlot's own bounds of a single point are years apart.
  const shown = () => {
    const first = points[0].at(0) ?? Date.now() / 1000;
    return [first, Math.max(points[0].at(-1) ?? 0, first + LEAST_S)];
  };
  const plot = new uPlot({
    width: chart.clientWidth || 600,
    height: 180,
    legend: { show: false },
    scales: { x: { range: shown } },
    axes: [time, { ...axis, size: 80 }],
    series: [{}, { label: "lag", stroke: style.getPropertyValue("--link"), points: { show: true } }],
  }, points, chart);

  document.addEventListener("zone", () => plot.redraw(false, true));

  let more = "&history=1";
  const look = async () => {
    try {
      const answer = await fetch(chart.dataset.url + more);
      if (answer.ok) {
        const figures = await answer.json();
        if (more) document.getElementById("lag-note").textContent = figures.note;
        more = "";
        points[0].push(...figures.times);
        points[1].push(...figures.lags);
        for (const series of points) {
          series.splice(0, Math.max(0, series.length - MOST_POINTS));
        }
        plot.setData(points);
        chart.dataset.points = points[0].length;
      }
    } catch {
      // The next look may succeed; the page shows its last state meanwhile.
    }
    setTimeout(look, EVERY_MS);
  };
  look();
}
