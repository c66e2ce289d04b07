// Tables with search, sorting, grouping and aligned numbers.

const FORMATS = {
  ms: digits,
  count: (value) => grouped(value, 0),
  id: String,
  number: digits,
  percent: (value) => percent(value / 100).replace("%", ""),
  bytes,
  flops: large,
  text: (value) => (value === true ? "yes" : value === false ? "no" : String(value)),
  name: String,
};
const NUMERIC = new Set(["ms", "count", "id", "number", "percent", "bytes", "flops"]);

function compare(a, b, descending) {
  if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
  const order = typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b;
  return descending ? -order : order;
}

const fileName = (caption) =>
  `${[(DATA.title || "perfhooks").split("/").pop(), whereabouts().window, caption]
    .filter(Boolean)
    .join("-")
    .replace(/[^\w.-]+/g, "-")
    .toLowerCase()}.csv`;

function cell(spec, value, row, top) {
  const label = spec.label; // shown before the value on narrow screens, where a row is a list of cells
  if (spec.node) return el("td", { class: spec.kind === "name" ? "name" : null }, spec.node(value, row));
  if (!known(value)) return el("td", { class: NUMERIC.has(spec.kind) ? "num none" : "none" }, "–");
  const text = FORMATS[spec.kind](value);
  if (!NUMERIC.has(spec.kind)) {
    const shown = spec.show ? spec.show(value, row) : text;
    const title = shown !== text || text.length > 40 ? text : null;
    const class_ = spec.word ? "txt word" : "txt";
    if (spec.kind !== "name") return el("td", { class: class_, title, "data-label": label }, shown);
    return el("td", { class: "name", title }, el("span", { class: "clamp" }, shown));
  }
  const bar =
    spec.bar && top > 0
      ? el(
          "i",
          { class: "track" },
          value > 0 && el("i", { class: "meter", style: { width: `${(Math.max(value, 0) / top) * 100}%` } }),
        )
      : null;
  const number = bar ? el("span", { class: "beside" }, text) : text;
  return el("td", { class: value === 0 ? "num zero" : "num", "data-label": label }, bar, number);
}

// the rows whose texts contain all words
function matching({ columns, rows }, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const keys = columns.filter((spec) => !NUMERIC.has(spec.kind)).map((spec) => spec.key);
  return rows.filter((row) => {
    const all = keys
      .map((key) => (known(row[key]) ? String(row[key]) : ""))
      .join(" ")
      .toLowerCase();
    return words.every((word) => all.includes(word));
  });
}

// a name that opens the details of its row
function opener(value, isOpen, click) {
  const given = { type: "button", class: "opener", "aria-expanded": String(isOpen), on: { click } };
  return el("button", given, el("span", { class: "clamp" }, value));
}

// "-count" means: by the column count, largest first
const sortName = (sort) => (sort && sort.key ? `${sort.descending ? "-" : ""}${sort.key}` : null);
const sortOf = (name) => ({ key: name.replace(/^-/, ""), descending: name.startsWith("-") });

// columns for speed and limit; they are empty if no shapes were recorded
function rateColumns() {
  const of = (term) => meaning("limits", term);
  return [
    { key: "tflops_per_s", label: "TFLOP/s", kind: "number", title: of("TFLOP/s") },
    { key: "gb_per_s", label: "GB/s", kind: "number", title: of("GB/s") },
    { key: "limit_percent", label: "Of its limit, %", kind: "percent", title: of("of its limit") },
    { key: "limit", word: true, label: "Limit", kind: "text", title: of("limit") },
  ];
}

// columns: [{key, label, kind, title, bar, word, show, node, extra}]. Columns without values or with only 0 are
// omitted. Extra columns appear only after a click on "All columns". id is the table in addresses, key is the column
// that identifies a row there, and open(row) returns the details of a row.
function dataTable({ id, key = "name", open, ...given }) {
  const { caption, columns, rows, sort, limit = 12, search, total, groups, group } = given;
  const current = { sort: { ...sort }, text: "", all: false, group, at: null, wide: false };
  const box = el("div", { class: "table", "data-table": id });
  const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption });
  const foot = el("div", { class: "table-foot" });
  const status = el("span", { role: "status" });
  const toggle = (name) => {
    const click = () => {
      current[name] = !current[name];
      draw();
    };
    return el("button", { type: "button", class: "plain", on: { click } });
  };
  const more = toggle("all");
  const wider = toggle("wide");
  foot.append(
    status,
    el(
      "span",
      { class: "take" },
      wider,
      more,
      copyButton("Copy", "Copy these rows for a spreadsheet", () => asCells(source().columns, ordered())),
      csvButton(
        () => fileName(caption),
        () => asCsv(source().columns, ordered()),
      ),
    ),
  );

  const source = () => (groups ? groups[current.group] : { columns, rows });
  const isNamed = (row) => current.at !== null && String(row[key]) === current.at;
  // the state of this table in the address
  function take({ find, by, sort: order, at }) {
    current.text = find || "";
    current.group = groups && Object.hasOwn(groups, by) ? by : group;
    const asked = order ? sortOf(order) : {};
    current.sort = source().columns.some((spec) => spec.key === asked.key) ? asked : { ...sort };
    current.at = known(at) ? at : null;
    if (current.at !== null && ordered().findIndex(isNamed) >= limit) current.all = true;
  }
  function note() {
    if (!id) return;
    const by = groups && current.group !== group ? current.group : null;
    const order = sortName(current.sort);
    const usual = sortName(sort);
    noteAddress(id, { find: current.text, by, sort: order === usual ? null : order, at: current.at });
  }
  function head(specs) {
    return el(
      "tr",
      null,
      specs.map((spec) => {
        const active = current.sort.key === spec.key;
        const order = active ? (current.sort.descending ? "descending" : "ascending") : null;
        const turn = () => {
          const first = NUMERIC.has(spec.kind);
          current.sort = { key: spec.key, descending: active ? !current.sort.descending : first };
          draw();
          note();
          const again = scroll.querySelector(`button[data-key="${spec.key}"]`);
          if (again) again.focus();
        };
        return el(
          "th",
          { scope: "col", class: NUMERIC.has(spec.kind) ? "num" : null, "aria-sort": order },
          el("button", { type: "button", "data-key": spec.key, tip: spec.title, on: { click: turn } }, spec.label),
        );
      }),
    );
  }
  function ordered() {
    const found = matching(source(), current.text);
    const { key: by, descending } = current.sort;
    return by ? found.sort((a, b) => compare(a[by], b[by], descending)) : found;
  }
  function line(row, cells) {
    const more = isNamed(row) && opens(row);
    const kind = row.$current ? "current" : isNamed(row) ? "opened" : null;
    const first = el("tr", { class: kind }, cells);
    return more ? [first, el("tr", { class: "more" }, el("td", { colspan: cells.length }, more))] : [first];
  }
  function openRow(row) {
    current.at = isNamed(row) ? null : String(row[key]);
    draw();
    note();
    const again = scroll.querySelector("button[aria-expanded=true]");
    if (again) again.focus();
  }
  const opens = (row) => open && current.group === group && open(row);
  const node = (spec) =>
    open && spec.key === key
      ? (value, row) => (opens(row) ? opener(value, isNamed(row), () => openRow(row)) : el("span", null, value))
      : spec.node;
  function draw() {
    const { columns: specs, rows: every } = source();
    const filled = specs.filter((spec) =>
      every.some((row) => known(row[spec.key]) && !(spec.kind !== "count" && row[spec.key] === 0)),
    );
    const shown = filled.filter((spec) => current.wide || !spec.extra);
    const found = ordered();
    const visible = current.all ? found : found.slice(0, limit);
    const tops = shown.map((spec) => (spec.bar ? Math.max(...every.map((row) => row[spec.key] || 0)) : 0));
    const body = visible.map((row) =>
      line(
        row,
        shown.map((spec, i) => cell({ ...spec, node: node(spec) }, row[spec.key], row, tops[i])),
      ),
    );
    scroll.replaceChildren(
      el(
        "table",
        null,
        el("caption", { class: "hidden" }, caption),
        el("thead", null, head(shown)),
        el("tbody", null, body),
      ),
    );
    const whole = groups ? every.length : total || every.length;
    const cut = whole > every.length ? `, the costliest of ${grouped(whole, 0)}` : "";
    status.textContent =
      visible.length < found.length || current.text
        ? `${visible.length} of ${plural(found.length, "row")}${cut}`
        : cut
          ? `${plural(found.length, "row")}${cut}`
          : "";
    wider.hidden = !filled.some((spec) => spec.extra);
    wider.textContent = current.wide ? "Fewer columns" : "All columns";
    more.hidden = found.length <= limit;
    more.textContent = current.all ? "Show fewer" : `Show all ${found.length}`;
  }
  const tools = el("div", { class: "tools" });
  function drawTools() {
    const words = {
      type: "search",
      placeholder: search,
      "aria-label": search,
      spellcheck: "false",
      value: current.text,
      on: {
        input: (event) => {
          current.text = event.target.value;
          draw();
          note();
        },
      },
    };
    const choose = (name) => {
      current.group = name;
      draw();
      note();
    };
    const choices = Object.entries(groups || {}).map(([name, each]) => [name, each.label]);
    tools.replaceChildren(
      ...[
        search ? el("input", words) : null,
        choices.length > 1 ? segmented("Group rows by", choices, current.group, choose) : null,
      ].filter(Boolean),
    );
  }
  box.append(tools, scroll, foot);
  const show = (given) => {
    take(given);
    drawTools();
    draw();
  };
  show(id ? addressOf(id) : {});
  if (id) places.set(id, show);
  return box;
}
