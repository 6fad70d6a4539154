// The frame: which screen is shown, its stream, the theme, and the keys.

import { follow, get } from "./api.js";
import { h, replace, setServerTime, to } from "./dom.js";
import { dialog, notice, toast } from "./widgets.js";
import { overview } from "./overview.js";
import { topics } from "./topics.js";
import { topic } from "./topic.js";
import { subscription, subscriptions } from "./subscriptions.js";
import { letters, letterTopics } from "./letters.js";
import { functions, health, transactions } from "./system.js";

/** Each screen: its path, its name in the navigation, the key behind `g`, and the function that shows it. */
const SCREENS = [
  { path: "overview", name: "Overview", key: "o", show: overview },
  { path: "topics", name: "Topics", key: "t", show: topics },
  { path: "subscriptions", name: "Subscriptions", key: "s", show: subscriptions },
  { path: "letters", name: "Dead letters", key: "d", show: letterTopics },
  { path: "functions", name: "Functions", key: "f", show: functions },
  { path: "transactions", name: "Transactions", key: "x", show: transactions },
  { path: "health", name: "Health", key: "h", show: health },
];
const INNER = {
  topic: { show: topic, parent: "topics" },
  subscription: { show: subscription, parent: "subscriptions" },
  letters: { show: letters, parent: "letters" },
};

const screen = document.getElementById("screen");
const nav = document.getElementById("nav");
const live = document.getElementById("live");
let about = { allowChanges: false, readOnly: "" };
let shown = null;

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = path.split("/").map(decodeURIComponent);
  } catch (error) {
    parts = ["overview"]; // a per cent sign that is none of an escape
  }
  return { parts: parts[0] ? parts : ["overview"], query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

const STATES = { live: "live", lost: "lost the server; trying again", paused: "paused" };

function setLive(state) {
  live.dataset.state = state;
  live.textContent = STATES[state] ?? "";
}

/** What a screen gets: where it is, what may be done, and ways to ask and to follow that end with it. */
function contextOf(parts, query) {
  const controller = new AbortController();
  const ends = [() => controller.abort()];
  const context = {
    parts,
    query,
    allowChanges: about.allowChanges,
    readOnly: about.readOnly,
    signal: controller.signal,
    get: (name, given) => get(name, given, controller.signal),
    follow(given, onValue) {
      let stop = () => {};
      stop = follow(given, (value) => !controller.signal.aborted && onValue(value), (state) => !controller.signal.aborted && setLive(state), (error) => (error.status === 404 ? context.gone(error) : context.fail(error)));
      ends.push(stop);
      return stop;
    },
    onEnd: (end) => ends.push(end),
    every(ms, body) {
      const timer = setInterval(() => !document.hidden && body(), ms);
      ends.push(() => clearInterval(timer));
    },
    /** Change the query of the address without a new screen. */
    remember(next) {
      Object.assign(query, next);
      history.replaceState(null, "", to(parts, query));
      shown.hash = location.hash;
    },
    fail(error) {
      if (error.name === "AbortError" || controller.signal.aborted) return;
      if (error.status === 401) {
        replace(screen, h("h1", {}, "This needs the token"), notice(error.message, "bad"));
        return;
      }
      if (screen.querySelector("[data-failed]")) screen.querySelector("[data-failed]").remove();
      const element = notice(error.message || String(error), "bad");
      element.dataset.failed = "1";
      screen.prepend(element);
    },
    /** What the screen is about is not there: none of its parts and buttons mean anything. */
    gone(error) {
      if (controller.signal.aborted) return;
      context.end();
      const parent = SCREENS.find((each) => each.path === INNER[parts[0]]?.parent) ?? SCREENS[0];
      replace(screen, h("h1", {}, "It is not in this store"), notice(error.message, "bad"), h("p", {}, h("a", { href: to([parent.path]) }, parent.name)));
    },
    again: () => show(),
  };
  context.end = () => ends.splice(0).forEach((end) => end());
  return context;
}

function drawNav(current) {
  replace(nav, SCREENS.map((each) => h("a", { href: to([each.path]), "aria-current": each.path === current ? "page" : null }, each.name)));
  const here = nav.querySelector("[aria-current]");
  if (here && nav.scrollWidth > nav.clientWidth) nav.scrollLeft = here.offsetLeft - 40;
}

async function show() {
  if (shown) shown.end();
  document.querySelectorAll("dialog").forEach((each) => each.close());
  const { parts, query } = place();
  const inner = parts.length > 1 ? INNER[parts[0]] : null;
  const outer = inner ? null : SCREENS.find((each) => each.path === parts[0]);
  const context = contextOf(parts, query);
  context.hash = location.hash;
  shown = context;
  setLive("");
  drawNav(inner ? inner.parent : parts[0]);
  replace(screen);
  scrollTo(0, 0);
  if (!inner && !outer) {
    replace(screen, h("h1", {}, "There is no such screen"), h("p", {}, h("a", { href: "#/overview" }, "Overview")));
    return;
  }
  document.title = `${parts[1] ?? outer.name} · embeddedpulsar`;
  try {
    await (inner ?? outer).show(screen, context);
  } catch (error) {
    context.fail(error);
  }
}

// -- theme ----------------------------------------------------------------------------------------------

const root = document.documentElement;
const themeButton = document.getElementById("theme");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

function drawTheme() {
  themeButton.textContent = isDark() ? "☀" : "☾";
  themeButton.setAttribute("aria-label", isDark() ? "Light theme" : "Dark theme");
  themeButton.title = `${isDark() ? "Light" : "Dark"} theme (T)`;
}

function switchTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("embeddedpulsar.theme", root.dataset.theme);
  } catch (error) {
    toast("This browser keeps no settings: the theme holds until the page is closed.");
  }
  drawTheme();
}

themeButton.addEventListener("click", switchTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTheme);
drawTheme();

// -- keys -----------------------------------------------------------------------------------------------

const KEYS = [
  ["/", "search"],
  ["j  k", "next and previous row"],
  ["Enter", "open the row"],
  ["[  ]", "page before and behind"],
  ["g then o t s d f x h", "overview, topics, subscriptions, dead letters, functions, transactions, health"],
  ["u", "up: from a topic to the topics"],
  ["T", "light or dark"],
  ["Esc", "close a dialog, leave a field, clear the search"],
  ["?", "this help"],
];

function showHelp() {
  if (document.querySelector("dialog[open]")) return;
  const element = dialog(h("form", { method: "dialog" }, h("h2", {}, "Keys"), h("dl", { class: "facts" }, KEYS.map(([keys, text]) => [h("dt", {}, keys.split(" ").filter(Boolean).map((key) => (key === "then" ? " then " : [h("kbd", {}, key), " "]))), h("dd", {}, text)])), h("div", { class: "buttons" }, h("button", { class: "primary" }, "Close"))));
  element.dataset.help = "1";
}

document.getElementById("help").addEventListener("click", showHelp);

function select(step) {
  const rows = [...screen.querySelectorAll("tr.row")].filter((row) => row.offsetParent !== null);
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("selected"));
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)];
  for (const row of rows) row.classList.toggle("selected", row === next);
  next.scrollIntoView({ block: "nearest" });
}

let isGo = false;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key === "Escape") {
    if (isTyping && event.target.type === "search" && event.target.value) {
      event.target.value = "";
      event.target.dispatchEvent(new Event("input"));
    } else if (isTyping) event.target.blur();
    else screen.querySelector("tr.selected")?.classList.remove("selected");
    return;
  }
  if (isTyping) return;
  if (isGo) {
    isGo = false;
    const target = SCREENS.find((each) => each.key === event.key);
    if (target) location.hash = to([target.path]);
    return;
  }
  const selected = screen.querySelector("tr.selected");
  const actions = {
    "/": () => screen.querySelector("input[type=search]")?.focus(),
    j: () => select(1),
    k: () => select(-1),
    ArrowDown: selected ? () => select(1) : null,
    ArrowUp: selected ? () => select(-1) : null,
    Enter: selected && !event.target.closest("a, button") ? () => selected.open() : null,
    "[": () => screen.querySelector("[data-key='[']:not(:disabled)")?.click(),
    "]": () => screen.querySelector("[data-key=']']:not(:disabled)")?.click(),
    g: () => {
      isGo = true;
      setTimeout(() => (isGo = false), 1500);
    },
    u: () => {
      const { parts } = place();
      if (parts.length > 1) location.hash = to([INNER[parts[0]]?.parent ?? "overview"]);
    },
    T: switchTheme,
    "?": showHelp,
  };
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

// -- begin ----------------------------------------------------------------------------------------------

addEventListener("hashchange", () => {
  if (!shown || location.hash !== shown.hash) show();
});

try {
  about = await get("about");
  setServerTime(about.time);
  document.getElementById("mode").textContent = about.allowChanges ? "" : "read-only";
  await show();
} catch (error) {
  replace(screen, h("h1", {}, error.status === 401 ? "This needs the token" : "The server does not answer"), notice(error.message, "bad"));
}
