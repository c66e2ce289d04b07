// Tables that can be searched, sorted and grouped, with numbers that line up.

const FORMATS = {
  ms: (value, scale) => value.toFixed(scale),
  count: (value) => grouped(value, 0),
  number: (value, scale) => value.toFixed(scale),
  percent: (value) => value.toFixed(1),
  bytes,
  flops: large,
  text: (value) => (value === true ? "yes" : value === false ? "no" : String(value)),
  name: String,
};
const NUMERIC = new Set(["ms", "count", "number", "percent", "bytes", "flops"]);

function decimals(values) {
  const most = values.reduce((top, value) => (known(value) && Math.abs(value) > top ? Math.abs(value) : top), 0);
  return most >= 100 ? 1 : most >= 10 ? 2 : 3;
}

function compare(a, b, descending) {
  if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
  const order = typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b;
  return descending ? -order : order;
}

function cell(spec, value, row, scale, top) {
  if (spec.node) return el("td", { class: spec.kind === "name" ? "name" : null }, spec.node(value, row));
  if (!known(value)) return el("td", { class: NUMERIC.has(spec.kind) ? "num none" : "none" }, "–");
  const text = FORMATS[spec.kind](value, scale);
  if (!NUMERIC.has(spec.kind)) {
    const shown = spec.show ? spec.show(value, row) : text;
    const title = shown !== text || text.length > 40 ? text : null;
    if (spec.kind !== "name") return el("td", { class: spec.word ? "txt word" : "txt", title }, shown);
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
  return el("td", { class: value === 0 ? "num zero" : "num" }, bar, bar ? el("span", { class: "beside" }, text) : text);
}

// columns: [{key, label, kind, title, bar, word, show, node}]; those without any value, or number but 0, are left out
function dataTable({ caption, columns, rows, sort, limit = 12, search, total, groups, group }) {
  let current = { sort: { ...sort }, text: "", all: false, group };
  const box = el("div", { class: "table" });
  const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption });
  const foot = el("div", { class: "table-foot" });
  const status = el("span", { role: "status" });
  const more = el("button", {
    type: "button",
    class: "plain",
    on: {
      click: () => {
        current.all = !current.all;
        draw();
      },
    },
  });
  foot.append(status, more);

  const source = () => (groups ? groups[current.group] : { columns, rows });
  function matching() {
    const words = current.text.toLowerCase().split(/\s+/).filter(Boolean);
    const { columns: specs, rows: every } = source();
    const texts = specs.filter((spec) => !NUMERIC.has(spec.kind)).map((spec) => spec.key);
    return every.filter((row) => {
      const text = texts
        .map((key) => (known(row[key]) ? String(row[key]) : ""))
        .join(" ")
        .toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }
  function head(specs) {
    return el(
      "tr",
      null,
      specs.map((spec) => {
        const active = current.sort && current.sort.key === spec.key;
        const order = active ? (current.sort.descending ? "descending" : "ascending") : null;
        const turn = () => {
          const first = NUMERIC.has(spec.kind);
          current.sort = { key: spec.key, descending: active ? !current.sort.descending : first };
          draw();
          const again = scroll.querySelector(`button[data-key="${spec.key}"]`);
          if (again) again.focus();
        };
        return el(
          "th",
          { scope: "col", class: NUMERIC.has(spec.kind) ? "num" : null, "aria-sort": order },
          el("button", { type: "button", "data-key": spec.key, title: spec.title, on: { click: turn } }, spec.label),
        );
      }),
    );
  }
  function draw() {
    const { columns: specs, rows: every } = source();
    const shown = specs.filter((spec) =>
      every.some((row) => known(row[spec.key]) && !(spec.kind !== "count" && row[spec.key] === 0)),
    );
    const found = matching();
    if (current.sort) found.sort((a, b) => compare(a[current.sort.key], b[current.sort.key], current.sort.descending));
    const visible = current.all ? found : found.slice(0, limit);
    const scale = shown.map((spec) => decimals(every.map((row) => (NUMERIC.has(spec.kind) ? row[spec.key] : null))));
    const tops = shown.map((spec) => (spec.bar ? Math.max(...every.map((row) => row[spec.key] || 0)) : 0));
    const body = visible.map((row) =>
      el(
        "tr",
        row.$current ? { class: "current" } : null,
        shown.map((spec, i) => cell(spec, row[spec.key], row, scale[i], tops[i])),
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
    more.hidden = found.length <= limit;
    more.textContent = current.all ? "Show fewer" : `Show all ${found.length}`;
    foot.hidden = !status.textContent && more.hidden;
  }
  const tools = el("div", { class: "tools" });
  if (search) {
    tools.append(
      el("input", {
        type: "search",
        placeholder: search,
        "aria-label": search,
        spellcheck: "false",
        on: {
          input: (event) => {
            current.text = event.target.value;
            draw();
          },
        },
      }),
    );
  }
  if (groups && Object.keys(groups).length > 1) {
    tools.append(
      segmented(
        "Group rows by",
        Object.entries(groups).map(([key, each]) => [key, each.label]),
        group,
        (key) => {
          current.group = key;
          draw();
        },
      ),
    );
  }
  if (tools.children.length) box.append(tools);
  box.append(scroll, foot);
  draw();
  return box;
}
