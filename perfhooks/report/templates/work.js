// What kind of work was done, and when the devices had none.

// one bar whose parts sum to the whole
function shareBar(label, rows, key) {
  const whole = rows.reduce((sum, row) => sum + (row[key] || 0), 0);
  if (!(whole > 0)) return null;
  const parts = rows.filter((row) => row[key] > 0);
  const said = parts.map((row) => `${row.category} ${percent(row[key] / whole)}`);
  return el(
    "div",
    { class: "share-bar" },
    el("span", { class: "muted" }, `${label}, ${ms(whole)}`),
    el(
      "div",
      { class: "share-track", role: "img", "aria-label": `${label}: ${said.join(", ")}` },
      parts.map((row, place) =>
        el("i", {
          title: `${said[place]}, ${ms(row[key])}`,
          style: { "flex-grow": row[key] / whole, background: `var(--work-${row.category})` },
        }),
      ),
    ),
  );
}

function categoriesSection(details) {
  const rows = rowsOf(details.categories);
  if (!rows.length) return null;
  const of = (term) => meaning("Categories", term);
  const chip = (value) =>
    el("span", null, el("i", { class: "chip", style: { background: `var(--work-${value})` } }), value);
  const columns = [
    { key: "category", label: "Kind of work", kind: "text", node: chip, title: of("category") },
    { key: "device_ms", label: "Device, ms", kind: "ms", title: of("device") },
    { key: "device_percent", label: "Of the device, %", kind: "percent", title: of("device") },
    { key: "kernels", label: "Kernels", kind: "count" },
    { key: "host_ms", label: "Host, ms", kind: "ms", title: of("host") },
    { key: "host_percent", label: "Of the host, %", kind: "percent", title: of("host") },
    { key: "calls", label: "Operators", kind: "count" },
    { key: "names", label: "Most of it in", kind: "name", title: of("most of it in") },
  ];
  const bars = [shareBar("Device", rows, "device_ms"), shareBar("Host", rows, "host_ms")];
  return section(
    "categories",
    "Kinds of work",
    "What the operators and kernels of the recorded window did, by what they are; the parts sum to the whole.",
    ...bars,
    dataTable({ caption: "Kinds of work", columns, rows }),
  );
}

function gapsSection(details) {
  const rows = rowsOf(details.gaps);
  if (!rows.length) return null;
  const of = (term) => meaning("Longest gaps", term);
  const columns = [
    { key: "step", label: "Step", kind: "count" },
    { key: "start_ms", label: "From, ms", kind: "ms", title: of("from") },
    { key: "gap_ms", label: "Gap, ms", kind: "ms", bar: true, title: of("gap") },
    { key: "line", label: "Line", kind: "name", show: frameName, title: of("line, label, operator, call") },
    { key: "label", label: "Label", kind: "name", title: of("line, label, operator, call") },
    { key: "operator", label: "Operator", kind: "name", title: of("line, label, operator, call") },
    { key: "call", label: "Call", kind: "name", title: of("line, label, operator, call") },
  ];
  return section(
    "gaps",
    "Longest gaps",
    `When no device worked for longest, ${ms(rows[0].gap_ms)} at once, and what the host did for most of that time.`,
    dataTable({ id: "gaps", caption: "Longest gaps", columns, rows, sort: { key: "gap_ms", descending: true } }),
  );
}
