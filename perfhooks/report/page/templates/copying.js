// Taking things along: rows as CSV or for a spreadsheet, lines of code.

// as RFC 4180 has it
const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
// cells of a spreadsheet end at tabs and lines
const flat = (text) => text.replace(/[\t\r\n]+/g, " ");

function written(columns, rows, between, escape) {
  const line = (values) => values.map((value) => escape(known(value) ? String(value) : "")).join(between);
  return [line(columns.map((spec) => spec.key)), ...rows.map((row) => line(columns.map((spec) => row[spec.key])))];
}
const asCsv = (columns, rows) => `${written(columns, rows, ",", quoted).join("\r\n")}\r\n`;
const asCells = (columns, rows) => written(columns, rows, "\t", flat).join("\n");

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch (error) {
    // a browser that keeps the clipboard from files still copies what is selected
    const area = el("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function copyButton(label, title, text) {
  const button = el("button", { type: "button", class: "plain copy", title }, label);
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

function csvButton(name, text) {
  const click = () => save(name(), text());
  const title = "Save these rows as a file";
  return el("button", { type: "button", class: "plain copy", title, on: { click } }, "CSV");
}
