// One line over time, with a cursor that the charts of a page share, and a table behind it.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { clockTime, shortNumber } from "./words.js";

const HEIGHT_PX = 150;
const TABLE_ROWS = 40;

/** uPlot is a script of its own, not a module. @type {any} */
const Plot = /** @type {any} */ (globalThis).uPlot;

/** @param {{title: string, unit: string, points: [number, number | null][], colour?: string, steps?: boolean,
 *   zeroLine?: boolean, cursor: string}} props */
export function Chart({ title, unit, points, colour = "--accent", steps = false, zeroLine = false, cursor }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [open, setOpen] = useState(false);
  const data = [points.map(([atS]) => atS), points.map(([, value]) => value)];
  useEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const make = () => {
      plot.current?.destroy();
      plot.current = new Plot(
        options(element.clientWidth, title, unit, colour, steps, zeroLine, cursor),
        data,
        element,
      );
    };
    make();
    const resize = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT_PX }));
    resize.observe(element);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", make);
    return () => {
      resize.disconnect();
      theme.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [title]);
  useEffect(() => plot.current?.setData(data), [points]);
  const last = points.at(-1)?.[1];
  const every = Math.max(1, Math.ceil(points.length / TABLE_ROWS));
  return html`
    <figure class="chart">
      <h3>${title}: ${shortNumber(last)} ${unit}</h3>
      <div ref=${box} aria-hidden="true"></div>
      <details onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
        <summary>${title} as a table</summary>
        ${
          open &&
          html`<div class="scroll" tabindex="0" role="region" aria-label=${`${title} as a table`}>
            <table>
              <thead>
                <tr>
                  <th scope="col">Time</th>
                  <th scope="col" class="number">${title} ${unit && `(${unit})`}</th>
                </tr>
              </thead>
              <tbody>
                ${points
                  .filter((_, index) => index % every === 0 || index === points.length - 1)
                  .map(
                    ([atS, value]) =>
                      html` <tr>
                        <th scope="row">${clockTime(atS)}</th>
                        <td class="number">${shortNumber(value)}</td>
                      </tr>`,
                  )}
              </tbody>
            </table>
          </div>`
        }
      </details>
    </figure>
  `;
}

/** @param {number} width @param {string} title @param {string} unit @param {string} colour @param {boolean} steps
 * @param {boolean} zeroLine @param {string} cursor */
function options(width, title, unit, colour, steps, zeroLine, cursor) {
  const style = getComputedStyle(document.documentElement);
  const of = (/** @type {string} */ name) => style.getPropertyValue(name);
  const axis = { stroke: of("--muted"), grid: { stroke: of("--line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT_PX,
    padding: [null, 30, null, null], // half of the last time below the axis
    cursor: { sync: { key: cursor }, y: false },
    legend: { live: true },
    scales: {
      x: { range: widened },
      y: {
        range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) =>
          padded(low, high, zeroLine),
      },
    },
    series: [
      { label: "time", value: (/** @type {any} */ _, /** @type {number} */ atS) => (atS ? clockTime(atS) : "–") },
      {
        label: unit || title.toLowerCase(),
        stroke: of(colour),
        width: 2,
        spanGaps: false,
        points: { show: (/** @type {any} */ plot) => plot.data[0].length === 1, fill: of(colour) },
        paths: steps ? Plot.paths.stepped({ align: 1 }) : undefined,
        value: (/** @type {any} */ _, /** @type {number} */ value) => shortNumber(value),
      },
    ],
    axes: [
      {
        ...axis,
        values: (/** @type {any} */ _, /** @type {number[]} */ times) => times.map((atS) => clockTime(atS)),
        space: 90, // a time and a gap: uPlot draws no more of them
      },
      { ...axis, size: 54, values: (/** @type {any} */ _, /** @type {number[]} */ values) => values.map(shortNumber) },
    ],
  };
}

/** A single report is shown in the middle of a minute; of its own, uPlot shows it at the beginning of a day.
 * @param {any} plot @param {number} low @param {number} high @returns {[number, number]} */
function widened(plot, low, high) {
  return plot.data[0].length === 1 ? [low - 30, low + 30] : [low, high];
}

/** @param {number} low @param {number} high @param {boolean} zeroLine @returns {[number, number]} */
function padded(low, high, zeroLine) {
  const [from, to] = zeroLine ? [Math.min(0, low ?? 0), Math.max(0, high ?? 1)] : [low ?? 0, high ?? 1];
  const pad = (to - from || Math.abs(to) || 1) * 0.08;
  return [zeroLine && from === 0 ? 0 : from - pad, to + pad];
}
