"use strict";
// Texts of a record enter the page as text nodes only.
const data = JSON.parse(document.getElementById("data").textContent);
const all = data.rollouts, $ = (id) => document.getElementById(id);
const COLUMNS = ["n", "step", "reward", "advantage", "turns", "penalties"], SHOWN = 300, CURVES = 16, NS = "http://www.w3.org/2000/svg";
let found = all, order = ["", 1], at = 0, turn = 0;

function make(tag, text, style, ...children) {
  const node = document.createElement(tag);
  if (text !== null && text !== undefined) node.textContent = text;
  if (style) node.className = style;
  node.append(...children);
  return node;
}
const number = (x) => x === null || x === undefined ? "–" : Number.isInteger(x) ? String(x) : x.toPrecision(3);
const row = (cells, head) => make("tr", null, "", ...cells.map((c) => make(head ? "th" : "td", c, /^[−\-–\d.]/.test(c) ? "n" : "")));
const texts = new Map();
function textOf(r) {
  if (!texts.has(r)) texts.set(r, [r.id, r.stop, ...[r.prompt, ...r.steps.map((s) => s.fields), r.end].flat().flatMap((f) => [f[0], f[1]])].join("\n").toLowerCase());
  return texts.get(r);
}
function test(term) {
  const compared = /^(\w+)(<=|>=|<|>|=|:)(-?[\d.]+)$/.exec(term);
  if (compared && (COLUMNS.includes(compared[1]) || compared[1] === "run")) {
    const [, name, sign, value] = compared, limit = Number(value);
    const holds = { "<": (x) => x < limit, ">": (x) => x > limit, "<=": (x) => x <= limit, ">=": (x) => x >= limit }[sign] || ((x) => x === limit);
    return (r) => { const x = name === "run" ? r.run + 1 : r[name]; return x !== null && x !== undefined && holds(x); };
  }
  if (term === "correct" || term === "wrong") return (r) => r.correct === (term === "correct");
  if (term.length > 1 && term.startsWith("-")) return (r) => !textOf(r).includes(term.slice(1).toLowerCase());
  return (r) => textOf(r).includes(term.toLowerCase());
}
function filter() {
  const tests = $("filter").value.split(/\s+/).filter(Boolean).map(test);
  found = all.filter((r) => tests.every((t) => t(r)));
  if (order[0]) found.sort((a, b) => order[1] * ((a[order[0]] ?? -Infinity) - (b[order[0]] ?? -Infinity)) || 0);
  const known = found.map((r) => r.reward).filter((x) => x !== null);
  const mean = known.length ? `, mean reward ${number(known.reduce((a, b) => a + b, 0) / known.length)}` : "";
  $("count").textContent = `${found.length} of ${all.length} match${mean}${found.length > SHOWN ? `; the first ${SHOWN} are listed` : ""} · keys: j k rollout, h l step`;
  go(0, 0);
}
function list() {
  const head = row([...(data.runs.length > 1 ? ["run"] : []), ...COLUMNS.map((c) => c + (order[0] === c ? (order[1] > 0 ? " ▲" : " ▼") : "")), "ended by"], true);
  [...head.cells].forEach((cell) => { const name = cell.textContent.split(" ")[0]; if (!COLUMNS.includes(name)) return; cell.className = "n"; cell.onclick = () => { order = [name, order[0] === name ? -order[1] : 1]; filter(); }; });
  const table = make("table", null, "", head);
  found.slice(0, SHOWN).forEach((r, i) => {
    const line = row([...(data.runs.length > 1 ? [String(r.run + 1)] : []), ...COLUMNS.map((c) => number(r[c])), (r.correct === null ? "" : r.correct ? "✓ " : "✗ ") + r.stop]);
    line.className = i === at ? "here" : "";
    line.onclick = () => go(i, 0);
    table.append(line);
  });
  $("list").replaceChildren(table);
}
const fields = (items) => items.flatMap(([name, text, tone]) => [...(name ? [make("b", name, tone)] : []), make("div", text, "text " + tone)]);
function show() {
  const r = found[at];
  if (!r) return $("one").replaceChildren();
  const step = r.steps[turn], parts = [];
  parts.push(make("h3", `${data.runs.length > 1 ? `run ${r.run + 1} · ` : ""}rollout ${r.n} · ${r.id}`));
  parts.push(make("p", `reward ${number(r.reward)} · advantage ${number(r.advantage)} · group ${r.group} · ended by ${r.stop || "–"}`, "muted"));
  const kin = all.filter((o) => o !== r && o.prompt_id === r.prompt_id).slice(0, 24);
  const near = kin.map((o) => { const b = make("button", `${data.runs.length > 1 ? `${o.run + 1}/` : ""}${o.n}: ${number(o.reward)}`, o.run ? "two" : "one"); b.onclick = () => { if (!found.includes(o)) { $("filter").value = ""; filter(); } go(found.indexOf(o), 0); }; return b; });
  if (near.length) parts.push(make("div", null, "", make("span", "same prompt ", "muted"), ...near));
  parts.push(make("div", null, "", ...r.steps.map((s, i) => { const b = make("button", `${i + 1} ${s.label}`, i === turn ? "here" : ""); b.onclick = () => go(at, i); return b; })));
  if (turn === 0) parts.push(...fields(r.prompt));
  if (step) {
    parts.push(...fields(step.fields));
    if (step.reward.length) parts.push(make("table", null, "", row(["component", "raw", "normalized", "weight", "contribution"], true), ...step.reward.map((c) => row([c[0], ...c.slice(1).map(number)]))));
    parts.push(...step.penalties.map((p) => make("p", "✗ " + p, "warn")));
  }
  if (turn >= r.steps.length - 1) parts.push(...fields(r.end));
  $("one").replaceChildren(...parts);
}
function go(rollout, step) {
  at = Math.max(0, Math.min(found.length - 1, rollout));
  turn = Math.max(0, Math.min((found[at]?.steps.length ?? 1) - 1, step));
  list();
  show();
}
function curves() {
  if (data.runs.length > 1) $("curves").before(make("p", null, "", ...data.runs.map((name, i) => make("span", `${i + 1}: ${name}  `, i ? "two" : "one"))));
  for (const [name, series] of Object.entries(data.curves)) {
    const points = series.flat().filter((p) => p[1] !== null);
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const svg = document.createElementNS(NS, "svg");
    svg.setAttribute("viewBox", "0 0 300 90");
    series.forEach((one, i) => {
      const path = document.createElementNS(NS, "path");
      const place = ([x, y]) => `${(300 * (x - x0)) / (x1 - x0 || 1)},${86 - (82 * (y - y0)) / (y1 - y0 || 1)}`;
      path.setAttribute("d", "M" + one.filter((p) => p[1] !== null).map(place).join("L"));
      path.setAttribute("class", i ? "two" : "one");
      if (one.length) svg.append(path);
    });
    const last = series.map((one) => number(one.length ? one[one.length - 1][1] : null)).join(" · ");
    ($("curves").children.length < CURVES ? $("curves") : $("more")).append(make("figure", null, "", make("figcaption", `${name}: ${last} (${number(y0)} … ${number(y1)}, steps ${x0}–${x1})`), svg));
  }
  if (!Object.keys(data.curves).length) $("curves").textContent = "No metric has two steps.";
  $("more").parentNode.hidden = !$("more").children.length;
}
$("held").textContent = data.held;
$("filter").oninput = filter;
document.onkeydown = (e) => {
  if (e.target === $("filter") || e.ctrlKey || e.metaKey || e.altKey) return;
  const move = { j: [1, 0], k: [-1, 0], l: [0, 1], h: [0, -1] }[e.key];
  if (!move) return;
  go(at + move[0], move[0] ? 0 : turn + move[1]);
  document.querySelector("tr.here")?.scrollIntoView({ block: "nearest" });
};
curves();
filter();
