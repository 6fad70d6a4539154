// Small charts in SVG: lines over time, sparklines, segments and ranges drawn to scale.

import { bytes, clock, count, counted, h, put, rate, s, short } from "./dom.js";

const HEIGHT = 150;
const BELOW = 20;
const ABOVE = 8;

/** A step above the largest value that reads well: 1, 2 or 5 times a power of ten. */
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/**
 * Lines over time. `series`: `{key, label, class, format}`; `update` takes rows `{time, [key]: value}`, the oldest
 * first. All lines have one scale.
 */
export function timeChart(series, { height = HEIGHT, label = "" } = {}) {
  const svg = s("svg", { height, role: "img", "aria-label": label });
  const tip = h("div", { class: "tip", hidden: true });
  const root = h("div", { class: "chart" }, svg, tip);
  const grid = [0, 1, 2].map(() => ({ line: s("line", { class: "gridline" }), text: s("text", { "text-anchor": "start" }) }));
  const times = [s("text", { y: height - 4 }), s("text", { y: height - 4, "text-anchor": "end" })];
  const cross = s("line", { class: "cross", y1: ABOVE, y2: height - BELOW, visibility: "hidden" });
  const parts = series.map((each) => ({
    ...each,
    area: s("path", { class: `area ${each.class}` }),
    line: s("path", { class: `line ${each.class}` }),
  }));
  for (const { line, text } of grid) svg.append(line, text);
  svg.append(...times, cross, ...parts.map((part) => part.area), ...parts.map((part) => part.line));
  let rows = [];

  const x = (row, width) => {
    const [first, last] = [rows[0].time, rows[rows.length - 1].time];
    return last > first ? ((row.time - first) / (last - first)) * width : width;
  };
  const draw = () => {
    const width = root.clientWidth;
    if (!width) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const top = ceiling(Math.max(...rows.flatMap((row) => series.map((each) => row[each.key])), 0));
    const y = (value) => ABOVE + (1 - value / top) * (height - ABOVE - BELOW);
    grid.forEach(({ line, text }, at) => {
      const value = (top * at) / 2;
      for (const [name, number] of [["x1", 0], ["x2", width], ["y1", y(value)], ["y2", y(value)]]) line.setAttribute(name, number);
      text.setAttribute("y", y(value) - 3);
      text.textContent = at ? series[0].format(value) : "";
    });
    if (rows.length < 2) {
      put(times[0], "collecting…");
      put(times[1], "");
      for (const part of parts) for (const path of [part.area, part.line]) path.setAttribute("d", "");
      return;
    }
    put(times[0], clock(rows[0].time));
    put(times[1], clock(rows[rows.length - 1].time));
    times[1].setAttribute("x", width);
    for (const part of parts) {
      const points = rows.map((row) => `${x(row, width).toFixed(1)},${y(row[part.key]).toFixed(1)}`);
      part.line.setAttribute("d", `M${points.join("L")}`);
      part.area.setAttribute("d", `M0,${y(0)}L${points.join("L")}L${width},${y(0)}Z`);
    }
  };
  const point = (event) => {
    if (rows.length < 2) return;
    const { left, width } = root.getBoundingClientRect();
    const at = event.clientX - left;
    const nearest = rows.reduce((best, row) => (Math.abs(x(row, width) - at) < Math.abs(x(best, width) - at) ? row : best));
    const place = x(nearest, width);
    cross.setAttribute("x1", place);
    cross.setAttribute("x2", place);
    cross.setAttribute("visibility", "visible");
    tip.replaceChildren(
      h("div", { class: "muted" }, clock(nearest.time)),
      ...parts.map((part) => h("div", { class: part.class }, h("span", { class: "swatch" }), `${part.label} ${part.format(nearest[part.key])}`)),
    );
    tip.hidden = false;
    tip.style.left = `${Math.min(Math.max(place + 12, 0), Math.max(width - tip.offsetWidth - 4, 0))}px`;
  };
  root.addEventListener("pointermove", point);
  root.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cross.setAttribute("visibility", "hidden");
  });
  new ResizeObserver(draw).observe(root);
  return {
    element: root,
    update(next) {
      rows = next;
      draw();
    },
  };
}

export function legend(series) {
  return h("div", { class: "legend" }, series.map((each) => h("span", { class: each.class }, each.label)));
}

/** A history of `[time, in, out, backlog]` rows as one small line of what came in. */
export function sparkline(history, index = 1, kind = "key-in") {
  const svg = s("svg", { class: "sparkline", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img" });
  if (!history || history.length < 2) return svg;
  const top = Math.max(...history.map((row) => row[index]), 1e-9);
  const points = history.map((row, at) => `${((at / (history.length - 1)) * 100).toFixed(1)},${(22 - (row[index] / top) * 20).toFixed(1)}`);
  svg.setAttribute("aria-label", `at most ${rate(top)} a second`);
  svg.append(
    s("path", { class: `area ${kind}`, d: `M0,23L${points.join("L")}L100,23Z` }),
    s("path", { class: `line ${kind}`, d: `M${points.join("L")}`, "vector-effect": "non-scaling-stroke" }),
  );
  return svg;
}

/** Bars of counts: `times` has one more element than `values`. */
export function barChart({ height = 110 } = {}) {
  const svg = s("svg", { height, role: "img" });
  const tip = h("div", { class: "tip", hidden: true });
  const root = h("div", { class: "chart" }, svg, tip);
  let shown = { times: [], values: [] };
  const draw = () => {
    const width = root.clientWidth;
    const { times, values } = shown;
    if (!width || !values.length) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const top = ceiling(Math.max(...values));
    const step = width / values.length;
    const floor = height - BELOW;
    svg.replaceChildren(
      s("line", { class: "gridline", x1: 0, x2: width, y1: ABOVE, y2: ABOVE }),
      s("line", { class: "gridline", x1: 0, x2: width, y1: floor, y2: floor }),
      ...values.map((value, at) => {
        const tall = value ? Math.max((value / top) * (floor - ABOVE), 2) : 0;
        return s("rect", { class: "bar key-in", x: at * step + 0.5, width: Math.max(step - 2, 1), y: floor - tall, height: tall, rx: 1.5 });
      }),
      s("text", { x: 0, y: ABOVE + 12 }, short(top)),
      s("text", { x: 0, y: height - 4 }, clock(times[0])),
      s("text", { x: width, y: height - 4, "text-anchor": "end" }, clock(times[times.length - 1])),
    );
    svg.setAttribute("aria-label", `${count(values.reduce((sum, value) => sum + value, 0))} in ${values.length} intervals`);
  };
  root.addEventListener("pointermove", (event) => {
    const { left, width } = root.getBoundingClientRect();
    const at = Math.min(Math.max(Math.floor(((event.clientX - left) / width) * shown.values.length), 0), shown.values.length - 1);
    if (at < 0) return;
    tip.replaceChildren(h("div", { class: "muted" }, `${clock(shown.times[at])} – ${clock(shown.times[at + 1])}`), h("div", {}, counted(shown.values[at], "entry")));
    tip.hidden = false;
    tip.style.left = `${Math.min(Math.max(event.clientX - left + 12, 0), Math.max(width - tip.offsetWidth - 4, 0))}px`;
  });
  root.addEventListener("pointerleave", () => {
    tip.hidden = true;
  });
  new ResizeObserver(draw).observe(root);
  return {
    element: root,
    update(times, values) {
      shown = { times, values };
      draw();
    },
  };
}

export const STATES = {
  sealed: "sealed",
  active: "active: written to",
  compacted: "compacted: the newest of each key is kept apart",
  offloaded: "offloaded: an offload location has it",
  reclaimable: "reclaimable: nothing holds it",
};

/** The segments of a log, as wide as they are large; small ones have a width that can be seen. */
export function segmentBar(segments, onSelect) {
  const total = segments.reduce((sum, segment) => sum + segment.size, 0) || 1;
  return h(
    "div",
    { class: "segments", role: "group", "aria-label": `${counted(segments.length, "segment")}, ${bytes(total)}` },
    segments.map((segment) => {
      const button = h("button", {
        type: "button",
        class: `state-${segment.state}`,
        title: `segment ${segment.ledger}: ${counted(segment.entries, "entry")}, ${bytes(segment.size)}, ${segment.state}; ${heldBy(segment)}`,
        "aria-label": `segment ${segment.ledger}, ${segment.state}, ${bytes(segment.size)}`,
        "aria-pressed": "false",
        onclick: () => onSelect(segment, button),
      });
      button.style.flexGrow = String(segment.size / total);
      return button;
    }),
  );
}

const REASONS = {
  open: "messages are appended to it",
  backlog: "not acknowledged by",
  compaction: "it is not compacted yet",
  pinned: "a Spark job reads it, or publishes into it",
  transaction: "it waits for an open transaction",
  retention: "the retention keeps it",
  "no subscription yet": "kept until there is a subscription",
  "an older ledger is kept": "nothing holds it, but an older segment is kept",
  "to be trimmed": "nothing holds it: it is removed in the background",
  ring: "a non-persistent topic keeps its last segments",
};

/** Why a segment is kept, and which subscriptions hold it, in words. */
export function heldBy(segment) {
  const reason = REASONS[segment.reason] ?? segment.reason;
  if (!segment.holders.length) return reason;
  const first = segment.holders.slice(0, 5).join(", ");
  const more = segment.holders.length > 5 ? ` and ${segment.holders.length - 5} more` : "";
  return segment.reason === "backlog" ? `${reason} ${first}${more}` : `${reason}; not acknowledged by ${first}${more}`;
}

/**
 * What a subscription has acknowledged, along the log: columns of as many entries each, filled as far as they are
 * acknowledged, and the edges of segments.
 */
export function rangeBar(ranges) {
  const wide = Math.max(ranges.columns.length, 1);
  const svg = s("svg", { class: "ranges", viewBox: `0 0 ${wide} 1`, preserveAspectRatio: "none", role: "img", "shape-rendering": "crispEdges" });
  svg.setAttribute("aria-label", `${count(ranges.acknowledged)} of ${counted(ranges.entries, "entry")} acknowledged`);
  svg.append(s("rect", { class: "todo", x: 0, y: 0, width: wide, height: 1 }));
  // Columns of the same share are one rectangle.
  let begin = 0;
  ranges.columns.forEach((share, at) => {
    if (ranges.columns[at + 1] === share) return;
    if (share) svg.append(s("rect", { class: "done", x: begin, y: 1 - share, width: at + 1 - begin, height: share }));
    begin = at + 1;
  });
  for (const segment of ranges.segments.slice(1)) {
    const x = (segment.begin / ranges.entries) * wide;
    svg.append(s("line", { class: "edge", x1: x, x2: x, y1: 0, y2: 1 }));
  }
  return svg;
}
