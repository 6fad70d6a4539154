// Messages: from either end, by id, time, key or text; decoded, or in hexadecimal; followed as they come.

import { address } from "./api.js";
import { bytes, count, counted, h, moment, replace, tag, time, topicLink } from "./dom.js";
import { card, facts, notice } from "./widgets.js";

const PAGE = 50;
const MOST = 300;
const TOGETHER = 64;

export async function messages(root, context, topic) {
  const query = context.query;
  const detail = await context.get("topic", { topic });
  const partitions = detail.logs.map((log) => log.name);
  // Of very many partitions one is chosen.
  const logs = !detail.partitions ? [topic] : detail.partitions > TOGETHER ? partitions : [topic, ...partitions];
  const log = h("select", {}, logs.map((name) => h("option", { value: name }, name === topic ? "all" : name.slice(topic.length + 1).replace("-", " "))));
  if (query.log && logs.includes(query.log)) log.value = query.log;
  const where = h("select", {}, [["end", "newest first"], ["start", "oldest first"], ["id", "at an id"], ["time", "at a time"]].map(([value, text]) => h("option", { value }, text)));
  const at = h("input", { type: "text", autocomplete: "off", spellcheck: "false", "aria-label": "Id or time" });
  const key = h("input", { type: "text", value: query.key ?? "", autocomplete: "off", spellcheck: "false" });
  const text = h("input", { type: "search", value: query.text ?? "", placeholder: "payload, key or property (/)", autocomplete: "off", spellcheck: "false" });
  const isCompacted = h("input", { type: "checkbox", checked: query.compacted === "1" });
  const followed = h("button", { type: "button", "aria-pressed": "false" }, "Follow");
  const search = h("button", { type: "submit", class: "primary" }, "Search");
  const atField = h("label", { class: "field" }, h("span", {}, "id"), at);
  if (query.from && query.from !== "end") {
    where.value = /^\d+$/.test(query.from) ? "time" : "id";
    at.value = where.value === "time" ? moment(Number(query.from)) : query.from;
  } else if (query.forward === "1") where.value = "start";

  const body = h("tbody");
  const state = h("span", { class: "muted" });
  const more = h("button", { type: "button", class: "small" }, "More");
  const foot = h("div", { class: "pager" }, state, more);
  const failed = h("div");
  let stop = null;
  let next = null;

  const drawAt = () => {
    atField.hidden = !["id", "time"].includes(where.value);
    atField.firstChild.textContent = where.value === "time" ? "local time" : "id, as 3:42";
    at.placeholder = where.value === "time" ? moment(Date.now()).slice(0, 19) : "3:42";
  };
  where.addEventListener("change", () => {
    at.value = "";
    drawAt();
    if (where.value === "end" || where.value === "start") restart();
    else at.focus();
  });
  drawAt();

  const from = () => {
    if (where.value === "end" || where.value === "start") return { from: "", forward: where.value === "start" ? "1" : "" };
    if (where.value === "id") return { from: at.value.trim(), forward: "1" };
    const ms = new Date(at.value.trim().replace(" ", "T")).getTime();
    if (Number.isNaN(ms)) throw new Error(`${at.value || "nothing"} is no time; write it as ${moment(Date.now()).slice(0, 19)}`);
    return { from: String(ms), forward: "1" };
  };
  const given = () => ({ topic: log.value, count: PAGE, key: key.value, text: text.value, compacted: isCompacted.checked ? "1" : "" });

  const load = async (start, isFirst) => {
    more.disabled = true;
    search.disabled = true;
    state.textContent = "searching…";
    replace(failed);
    try {
      const page = await context.get("messages", { ...given(), ...start });
      if (isFirst) replace(body);
      body.append(...page.messages.flatMap((message) => rowOf(message, context)));
      next = page.next;
      state.textContent = summary(body.querySelectorAll("tr.row").length, page);
    } catch (error) {
      if (error.name === "AbortError") return;
      state.textContent = "";
      next = null;
      replace(failed, notice(error.message, "bad"));
    } finally {
      more.disabled = next === null;
      more.hidden = next === null;
      search.disabled = false;
    }
  };
  const restart = () => {
    unfollow();
    let start;
    try {
      start = from();
    } catch (error) {
      replace(failed, notice(error.message, "bad"));
      return;
    }
    context.remember({ ...start, key: key.value, text: text.value, compacted: isCompacted.checked ? "1" : "", log: logs.length > 1 ? log.value : "" });
    load(start, true);
  };
  more.addEventListener("click", () => load({ from: next, exclusive: "1", forward: where.value === "end" ? "" : "1" }, false));
  log.addEventListener("change", restart);
  isCompacted.addEventListener("change", restart);

  const unfollow = () => {
    if (stop) stop();
    stop = null;
    followed.setAttribute("aria-pressed", "false");
  };
  followed.addEventListener("click", () => {
    if (stop) {
      unfollow();
      return;
    }
    where.value = "end";
    drawAt();
    followed.setAttribute("aria-pressed", "true");
    replace(body);
    replace(failed);
    more.hidden = true;
    state.textContent = "waiting for messages…";
    let came = 0;
    let shown = 0;
    let isFirst = true;
    stop = context.follow({ view: "messages", topic: log.value, key: key.value, text: text.value }, (value) => {
      came += value.came;
      if (!isFirst) shown += value.messages.length;
      isFirst = false;
      for (const message of value.messages) {
        const [row, ...rest] = rowOf(message, context);
        row.classList.add("fresh");
        body.prepend(row, ...rest);
      }
      trim(body);
      const left = came - shown;
      state.textContent = `${count(came)} came since you follow${left > 0 && !key.value && !text.value ? `, ${count(left)} of them are not shown` : ""}`;
    });
  });

  replace(
    root,
    h(
      "form",
      { class: "controls", onsubmit: (event) => { event.preventDefault(); restart(); } },
      logs.length > 1 ? h("label", { class: "field" }, "partition", log) : null,
      h("label", { class: "field" }, "order", where),
      atField,
      h("label", { class: "field" }, "key", key),
      h("label", { class: "field grow" }, "contains", text),
      h("label", { class: "check" }, isCompacted, "compacted"),
      search,
      followed,
    ),
    failed,
    card("", { flush: true }, h("div", { class: "scroll" }, h("table", { class: "messages" }, h("thead", {}, h("tr", {}, [["id", ""], ["published", "wide"], ["key", "wide"], ["value", ""], ["size", "number"]].map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)))), body)), foot),
  );
  restart();
}

function summary(shown, page) {
  if (!page.isWhole) return `${count(shown)} shown; ${count(page.read)} searched so far: there may be more`;
  if (!shown) return page.read ? `none of ${counted(page.read, "message")}` : "no messages";
  return page.next === null ? `${count(shown)} shown: that is all` : `${count(shown)} shown`;
}

/** Rows beyond a limit go, the oldest first, with what is open below them. */
function trim(body) {
  const rows = body.querySelectorAll("tr.row");
  for (let at = MOST; at < rows.length; at += 1) {
    if (rows[at].nextElementSibling?.classList.contains("detail")) rows[at].nextElementSibling.remove();
    rows[at].remove();
  }
}

const KINDS = { null: "null", encrypted: "encrypted", hex: "bytes" };

/** A message as a row of a table of five columns, which opens and closes its details. Its third cell is the key, or another text. */
export function rowOf(message, context, extra, third = message.key) {
  const { value } = message;
  const line = value.kind === "hex" || value.kind === "encrypted" ? value.text.split("\n")[0].slice(10) : value.text.slice(0, 400).replace(/\s+/g, " ");
  const row = h(
    "tr",
    { class: "row", "aria-expanded": "false" },
    h("td", { class: "mono fixed" }, message.id, message.partition >= 0 ? h("span", { class: "muted", title: `partition ${message.partition}` }, ` p${message.partition}`) : null),
    h("td", { class: "fixed wide" }, time(message.publishTime)),
    h("td", { class: "mono name wide" }, third),
    h("td", { class: "mono value" }, KINDS[value.kind] ? [tag(KINDS[value.kind]), " "] : null, value.error ? [tag("does not fit its schema", "warn"), " "] : null, value.kind === "null" ? "" : line),
    h("td", { class: "number" }, bytes(message.size)),
  );
  row.open = () => {
    const next = row.nextElementSibling;
    if (next?.classList.contains("detail")) {
      next.remove();
      row.setAttribute("aria-expanded", "false");
      return;
    }
    row.setAttribute("aria-expanded", "true");
    row.after(h("tr", { class: "detail" }, h("td", { colspan: 5 }, detailOf(message, context, extra))));
  };
  row.addEventListener("click", (event) => {
    if (event.target.closest("a, button, input") || String(getSelection())) return;
    row.open();
  });
  return [row];
}

function detailOf(message, context, extra) {
  const shown = h("div");
  const draw = (value) => replace(shown, value.error ? notice(value.error) : null, h("pre", { class: value.kind === "hex" || value.kind === "encrypted" ? "hex" : "" }, value.text || "(empty)"), value.isCut ? h("button", { type: "button", class: "small", onclick: whole }, "Show all of it") : null);
  const whole = async () => {
    try {
      draw((await context.get("message", { topic: message.topic, id: message.id })).value);
    } catch (error) {
      context.fail(error);
    }
  };
  draw(message.value);
  const names = Object.entries(message.properties);
  return h(
    "div",
    {},
    facts([
      ...(extra ? extra(message) : []),
      ["id", h("span", { class: "mono" }, message.id, message.partition >= 0 ? ` in partition ${message.partition}` : "")],
      ["published", time(message.publishTime)],
      ["event time", message.eventTime ? time(message.eventTime) : ""],
      ["key", message.key ? h("span", { class: "mono" }, message.key) : ""],
      ["ordering key", message.orderingKey],
      ["producer", `${message.producer}, sequence id ${message.sequenceId}`],
      ["deliveries before", message.redeliveries ? count(message.redeliveries) : ""],
      ["schema", message.value.schema],
      ["value", `${bytes(message.size)}, ${message.value.kind}`],
    ]),
    names.length ? [h("h3", {}, "properties"), facts(names.map(([name, text]) => [h("span", { class: "mono" }, name), h("span", { class: "mono" }, text)]))] : null,
    shown,
    h("div", { class: "controls" }, h("a", { class: "button", href: address("payload", { topic: message.topic, id: message.id }), download: "" }, "Save the payload"), message.topic ? h("span", { class: "muted" }, topicLink(message.topic)) : null),
  );
}
