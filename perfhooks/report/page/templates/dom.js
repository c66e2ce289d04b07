// Elements and numbers. Strings from a trace become text nodes, never markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DEFINITIONS = JSON.parse(document.getElementById("definitions").textContent);

function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "tip" && value) {
      element.dataset.tip = value;
      element.setAttribute("aria-description", value);
    } else if (name === "style")
      for (const [property, each] of Object.entries(value)) element.style.setProperty(property, each);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

const known = (value) => value !== null && value !== undefined;
const column = (table, name) => (table && table[name]) || null;
const height = (table) => (table && Object.values(table)[0] ? Object.values(table)[0].length : 0);

function rowsOf(table) {
  const names = Object.keys(table || {});
  return Array.from({ length: height(table) }, (_, i) =>
    Object.fromEntries(names.map((name) => [name, table[name][i]])),
  );
}

function grouped(number, decimals) {
  return number.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

/* Formats of numbers, as in perfhooks/core/words.py. A test compares both. */

const threeDigits = (value) => Number(value.toPrecision(3));

function plain(value) {
  return value >= 100 ? grouped(value, 0) : String(threeDigits(value));
}

function digits(value) {
  const size = threeDigits(Math.abs(value));
  if (size > 0 && size < 0.0001) return "<0.0001";
  return `${value < 0 ? "-" : ""}${plain(size)}`;
}

function ms(value) {
  if (!known(value)) return "–";
  const size = threeDigits(Math.abs(value));
  if (!size) return "0 ms";
  const units = [["h", 3.6e6, 7.2e6], ["min", 6e4, 1.2e5], ["s", 1e3, 1e3], ["ms", 1, 0.1], ["us", 1e-3, 0]];
  const [unit, length] = units.find(([, , least]) => size >= least);
  return `${value < 0 ? "-" : ""}${plain(size / length)} ${unit}`;
}

function percent(share) {
  if (!known(share) || !isFinite(share)) return "–";
  const value = share * 100;
  if (value > 0 && value < 0.1) return "<0.1%";
  return `${Math.abs(value) >= 9.95 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "")}%`;
}

function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = Math.abs(value),
    unit = 0;
  while (threeDigits(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${value < 0 ? "-" : ""}${unit ? plain(threeDigits(size)) : size.toFixed(0)} ${units[unit]}`;
}

function large(value) {
  const units = ["", "k", "M", "G", "T", "P"];
  let size = value,
    unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${digits(size)}${units[unit] ? " " + units[unit] : ""}`;
}

function plural(count, word, many) {
  return `${grouped(count, 0)} ${count === 1 ? word : many || word + "s"}`;
}

const STAGES = {
  train: "Training",
  validate: "Validation",
  test: "Test",
  predict: "Prediction",
  inference: "Inference",
  unknown: "Trace",
  trace: "Trace",
};
const stageName = (stage) => STAGES[stage] || stage;

function stepRange(first, last) {
  return first === last ? `step ${first}` : `steps ${first}–${last}`;
}

function windowName(window_) {
  return known(window_.first)
    ? `${stageName(window_.stage)}, ${stepRange(window_.first, window_.last)}`
    : `${stageName(window_.stage)} without steps`;
}

const moduleNames = new Map(); // names in the model by frame, for the modules of the shown window

// a Python frame, file.py(12): function, or a module, with the function or name first
function frameName(name) {
  if (moduleNames.has(name)) return `${moduleNames.get(name)}  ${name.replace("nn.Module: ", "")}`;
  const match = /^(.+)\((\d+)\): (.+)$/.exec(name) || /^(.+\.py)(): (.+)$/.exec(name);
  if (!match) return name;
  const parts = match[1].split("/");
  return `${match[3]}  ${parts[parts.length - 1]}${match[2] && `:${match[2]}`}`;
}

// C++ names have parts that all kernels share
function kernelName(name) {
  return name.replace(/^void /, "").replace(/\b(?:at::native::|\(anonymous namespace\)::)/g, "");
}

/* Definitions. Columns show theirs as tooltips. A section shows the definitions that no column shows. */

const definedByColumns = new Set();

function meaning(group, term) {
  const text = (DEFINITIONS[group] || {})[term];
  definedByColumns.add(text);
  return text;
}

function definitions(group) {
  const terms = Object.entries(DEFINITIONS[group] || {}).filter(([, text]) => !definedByColumns.has(text));
  if (!terms.length) return null;
  return info(terms.map(([term, text]) => `${term}: ${text}`).join("\n\n"));
}

const info = (tip) => el("button", { type: "button", class: "info", "aria-label": "Definitions", tip }, "?");

const tooltip = el("div", { id: "tooltip", role: "tooltip", hidden: true });
document.body.append(tooltip);
function showTooltip(event) {
  const owner = event.target instanceof Element && event.target.closest("[data-tip]");
  tooltip.hidden = !owner;
  if (!owner) return;
  tooltip.textContent = owner.dataset.tip;
  const box = owner.getBoundingClientRect();
  const below = box.bottom + tooltip.offsetHeight + 14 < innerHeight;
  tooltip.style.left = `${Math.max(Math.min(box.left, innerWidth - tooltip.offsetWidth - 16), 8)}px`;
  tooltip.style.top = `${below ? box.bottom + 6 : Math.max(box.top - tooltip.offsetHeight - 6, 8)}px`;
}
for (const kind of ["mouseover", "focusin"]) document.addEventListener(kind, showTooltip);
document.addEventListener("keydown", (event) => (tooltip.hidden = tooltip.hidden || event.key === "Escape"));

// legend of a chart; entries: [label, name of a colour]
function legend(entries) {
  const entry = ([label, name]) =>
    el("span", null, el("i", { class: "chip", style: { background: `var(--${name})` } }), label);
  return el("p", { class: "legend" }, entries.map(entry));
}

// a path without its middle: the first folder and the file remain
function shortPath(path) {
  const parts = path.split("/");
  let left = path;
  for (let count = parts.length - 2; left.length > 36 && count > 0; count -= 1)
    left = [...parts.slice(0, path.startsWith("/") ? 2 : 1), "…", ...parts.slice(-count)].join("/");
  return left;
}

function section(id, title, lead, ...children) {
  return el(
    "section",
    { id, "aria-label": title, class: "block" },
    el("div", { class: "title" }, el("h2", null, title), definitions(id)),
    lead ? el("p", { class: "lead" }, lead) : null,
    ...children,
  );
}

function segmented(label, choices, chosen, choose) {
  const group = el("div", { class: "segmented", role: "group", "aria-label": label });
  for (const [key, text] of choices) {
    group.append(
      el(
        "button",
        {
          type: "button",
          "data-key": key,
          "aria-pressed": key === chosen,
          on: {
            click: () => {
              for (const each of group.children) each.setAttribute("aria-pressed", String(each.dataset.key === key));
              choose(key);
            },
          },
        },
        text,
      ),
    );
  }
  for (const each of group.children) each.setAttribute("aria-pressed", String(each.dataset.key === chosen));
  return group;
}
