// Dead letters: which subscriptions have some, why they failed, replay and purge.

import { age, breakable, count, h, replace, tag, time, to, topicLink } from "./dom.js";
import { ask, card, table } from "./widgets.js";
import { rowOf } from "./messages.js";

export function letterTopics(root, context) {
  const list = table({
    columns: [
      { title: "subscription", class: "name", render: (row) => (row.origin ? h("a", { href: place(row) }, row.subscription) : "") },
      { title: "topic", class: "name", render: (row) => (row.origin ? topicLink(row.origin) : h("span", { class: "muted" }, "unknown: deleted, or named by the consumer")) },
      { title: "letters", class: "number", render: (row) => `${count(row.letters)}${row.isMore ? " or more" : ""}` },
      { title: "oldest", class: "number", render: (row) => age(row.oldest) },
      { title: "kept in", class: "name wide", render: (row) => topicLink(row.topic) },
    ],
    keyOf: (row) => row.topic,
    open: (row) => (location.hash = place(row)),
    empty: "No topic of dead letters: their names end with -DLQ.",
  });
  replace(root, h("div", { class: "head" }, h("h1", {}, "Dead letters")), card("", { flush: true }, list.element));
  const draw = async () => {
    try {
      list.update(await context.get("letter-topics"));
    } catch (error) {
      context.fail(error);
    }
  };
  context.every(5000, draw);
  return draw();
}

function place(row) {
  return to(["letters", row.origin || row.topic, row.subscription || "-", row.topic]);
}

/** Properties that say why a message failed, by the program that wrote the letter. */
const REASON = /exception|error|reason|cause/i;

export function letters(root, context) {
  const [, topic, subscription, kept = ""] = context.parts;
  const given = { topic, subscription, letters: kept };
  const body = h("tbody");
  const none = h("div", { class: "empty" }, "No dead letters.");
  const total = h("span");
  const draw = async () => {
    try {
      const values = await context.get("letters", { ...given, count: 200 });
      none.hidden = values.length > 0;
      replace(total, tag(values.length === 200 ? "200 or more" : count(values.length), values.length ? "warn" : "good"));
      replace(body, values.map((letter) => rowOf(letter, context, (message) => extra(message, given, context, draw), reasonsOf(letter)[0]?.[1] ?? "")));
    } catch (error) {
      context.fail(error);
    }
  };
  const actions = context.allowChanges
    ? h(
        "div",
        { class: "actions" },
        h("button", { type: "button", class: "small primary", onclick: () => ask({ title: "Replay all dead letters", verb: "Replay", given: { action: "replay", ...given }, done: draw }) }, "Replay all…"),
        h("button", { type: "button", class: "small danger", onclick: () => ask({ title: "Give up all dead letters", verb: "Purge", given: { action: "purge", ...given }, done: draw }) }, "Purge…"),
      )
    : null;
  replace(
    root,
    breakable(h("div", { class: "crumbs" }, "dead letters of ", h("a", { href: to(["subscription", topic, subscription]) }, subscription), " of ", topicLink(topic))),
    h("div", { class: "head" }, breakable(h("h1", {}, `Dead letters of ${subscription}`)), total, actions),
    card("", { flush: true }, h("div", { class: "scroll" }, h("table", { class: "messages" }, h("thead", {}, h("tr", {}, [["id", ""], ["dead since", "wide"], ["why", "wide"], ["value", ""], ["size", "number"]].map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)))), body)), none),
  );
  return draw();
}

function reasonsOf(letter) {
  return Object.entries(letter.properties).filter(([name]) => REASON.test(name));
}

function extra(letter, given, context, draw) {
  const reasons = reasonsOf(letter);
  return [
    ...reasons.map(([name, text]) => ["why", h("span", {}, h("strong", { class: "bad" }, text), " ", h("span", { class: "muted" }, name))]),
    reasons.length ? null : ["why", h("span", { class: "muted" }, "not said by the consumer: it was delivered as often as its policy allows")],
    ["from", h("span", {}, topicLink(letter.origin), letter.originId ? h("span", { class: "mono" }, ` ${letter.originId}`) : "")],
    ["dead since", time(letter.deadSince)],
    context.allowChanges ? ["", h("button", { type: "button", class: "small", onclick: () => ask({ title: `Replay ${letter.id}`, verb: "Replay", given: { action: "replay", ...given, id: letter.id }, done: draw }) }, "Replay this one…")] : null,
  ].filter(Boolean);
}
