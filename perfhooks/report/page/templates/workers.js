// The workers of the loader: the required number, and their time by function.

function planSection(details) {
  if (!details.plan) return null;
  const of = (term) => meaning("plan", term);
  const rows = rowsOf(details.plan.rows);
  return section(
    "plan",
    "Number of workers",
    details.plan.summary,
    rows.length
      ? dataTable({
          id: "plan",
          key: "workers",
          caption: "Number of workers",
          columns: [
            { key: "workers", label: "Workers", kind: "count" },
            { key: "batches_per_s", label: "Supply, batches/s", kind: "number", title: of("supply") },
            { key: "of_step_percent", label: "Of the demand, %", kind: "percent", bar: true, title: of("demand") },
            { key: "waits_percent", label: "Step waits, %", kind: "percent", title: of("waits") },
            { key: "step_ms", label: "Step, ms", kind: "ms", title: of("step") },
            { key: "note", word: true, label: "", kind: "text" },
          ],
          rows,
        })
      : null,
  );
}

function workersSection(details) {
  if (!details.workers) {
    const unseen = details.unseen_workers;
    return unseen ? section("workers", "Workers of the loader", unseen) : null;
  }
  const of = (term) => meaning("workers", term);
  const part = (key, label) => {
    const title = of(label.toLowerCase());
    return { key: `${key}_ms`, label: `${label}, ms`, kind: "ms", title };
  };
  return section(
    "workers",
    "Workers of the loader",
    "Time of the workers in this window, from samples of their stacks.",
    dataTable({
      id: "workers",
      key: "function",
      caption: "Workers of the loader",
      columns: [
        { key: "function", label: "Function", kind: "name" },
        { key: "percent", label: "Of their time, %", kind: "percent", bar: true, title: of("of their time") },
        { key: "total_ms", label: "Total, ms", kind: "ms" },
        part("waits", "Waits"),
        part("disk", "Disk"),
        part("computes", "Computes"),
        part("queued", "Waits for a CPU"),
        part("collate", "Collates"),
        part("transfer", "Transfers"),
        part("idle", "Idle"),
        { key: "file", word: true, label: "File", kind: "text", show: shortPath },
        { key: "line", label: "Line", kind: "id" },
      ],
      rows: rowsOf(details.workers),
      sort: { key: "total_ms", descending: true },
    }),
  );
}
