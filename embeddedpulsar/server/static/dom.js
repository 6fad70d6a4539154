// Elements and texts. Nothing here, or in any other module, takes text for markup: names, keys and payloads
// are whatever programs wrote.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** An element: `h("a", {href: "#/", class: "tag"}, "text", child)`. Names that begin with `on` are listeners. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Long names may break behind their separators; `wbr` is no part of what is copied. Returns the element. */
export function breakable(element) {
  const texts = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    const parts = text.data.match(/[^_./:=,@]*[_./:=,@]+|[^_./:=,@]+/g) ?? [];
    if (text.length < 12 || parts.length < 2) continue;
    text.replaceWith(...parts.flatMap((part, at) => (at ? [document.createElement("wbr"), part] : [part])));
  }
  return element;
}

/** An element of SVG. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** Set a text if it differs, so that what a user has selected stays selected. */
export function put(element, text) {
  const next = String(text ?? "");
  if (element.textContent !== next) element.textContent = next;
}

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value) {
  return GROUPED.format(value ?? 0);
}

/** A number with its noun: `1 range`, `2 ranges`, `2 entries`. */
export function counted(value, noun) {
  if ((value ?? 0) === 1) return `1 ${noun}`;
  return `${count(value)} ${noun.endsWith("try") ? `${noun.slice(0, -1)}ies` : `${noun}s`}`;
}

/** A number for a tile: all digits up to a million. */
export function short(value) {
  const size = Math.abs(value ?? 0);
  if (size < 1e6) return count(value);
  for (const [unit, factor] of [["T", 1e12], ["G", 1e9], ["M", 1e6]]) {
    if (size >= factor) return `${(value / factor).toFixed(2)} ${unit}`;
  }
  return count(value);
}

export function rate(value) {
  if (!value) return "0";
  if (value < 0.05) return "< 0.1";
  return value < 10 ? value.toFixed(1) : short(Math.round(value));
}

export function bytes(value) {
  let size = value ?? 0;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(size) < 1024 || unit === "TiB") return `${unit === "B" || size >= 100 ? Math.round(size) : size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return "";
}

export function duration(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 1) return "< 1 s";
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${count(Math.floor(seconds / 86400))} d`;
}

let skewMs = 0;

/** The clocks of browser and server may differ: ages are by that of the server. */
export function setServerTime(ms) {
  skewMs = ms - Date.now();
}

export function age(ms) {
  return ms ? duration(Date.now() + skewMs - ms) : "";
}

const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };

export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB", TIME);
}

/** A moment in local time, with milliseconds: `2026-01-31 12:00:00.000`. */
export function moment(ms) {
  if (!ms) return "";
  const date = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

export function time(ms) {
  return h("time", { datetime: ms ? new Date(ms).toISOString() : "", title: ms ? new Date(ms).toISOString() : "" }, moment(ms));
}

/** A name without what all names have. */
export function shortName(name) {
  for (const prefix of ["persistent://public/default/", "persistent://"]) {
    if (name.startsWith(prefix)) return name.slice(prefix.length);
  }
  return name;
}

/** The address of a screen; parts are names, which may have any characters. */
export function to(parts, query) {
  const path = parts.map((part) => encodeURIComponent(part)).join("/");
  const rest = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return `#/${path}${rest.size ? `?${rest}` : ""}`;
}

export function topicLink(name) {
  return h("a", { href: to(["topic", name]), title: name }, shortName(name));
}

export function tag(text, kind) {
  return h("span", { class: `tag ${kind ?? ""}` }, text);
}
