"use strict";
// Without this script every record is shown; it only hides what does not fit the filters.
(() => {
  const find = (id) => document.getElementById(id);
  const [form, search, engine, family] = ["filters", "search", "engine", "family"].map(find);
  const boxes = [...form.querySelectorAll("input[type=checkbox]")];
  const sections = [...document.querySelectorAll("section")];
  const rows = sections.flatMap((section) =>
    [...section.querySelectorAll("li")].map((item) => ({
      item,
      engine: section.dataset.engine,
      family: item.dataset.f,
      verdict: item.dataset.v,
      text: item.querySelector("summary, p").textContent.toLowerCase(),
    })),
  );

  function update() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const perVerdict = {}, perEngine = {};
    let shown = 0;
    for (const row of rows) {
      const fits =
        (!engine.value || row.engine === engine.value) &&
        (!family.value || row.family === family.value) &&
        words.every((word) => row.text.includes(word));
      if (fits) perVerdict[row.verdict] = (perVerdict[row.verdict] || 0) + 1;
      const visible = fits && (wanted.size === 0 || wanted.has(row.verdict));
      row.item.hidden = !visible;
      if (visible) {
        shown += 1;
        perEngine[row.engine] = (perEngine[row.engine] || 0) + 1;
      }
    }
    for (const section of sections) {
      const count = perEngine[section.dataset.engine] || 0;
      section.hidden = count === 0;
      section.querySelector("output").textContent = `${count} records`;
    }
    for (const output of form.querySelectorAll("output[data-verdict]"))
      output.textContent = perVerdict[output.dataset.verdict] || 0;
    find("shown").textContent = `${shown} of ${rows.length} records`;
    find("none").hidden = shown > 0;
  }

  // #engine:family/name opens a record; #family/name, or any other words, search for it.
  function follow() {
    let name = location.hash.slice(1);
    try {
      name = decodeURIComponent(name);
    } catch {
      // A percent sign that begins no code stands for itself.
    }
    if (!name) return;
    const target = find(name);
    if (!target) {
      form.reset();
      search.value = name;
    } else if (target.matches("li") && target.hidden) form.reset();
    update();
    if (!target) return;
    const details = target.querySelector("details");
    if (target.matches("li") && details) details.open = true;
    target.scrollIntoView();
  }

  document.querySelector(".matrix").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    form.reset();
    engine.value = link.dataset.engine;
    family.value = link.dataset.family;
    update();
    form.scrollIntoView();
  });
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(update));
  addEventListener("hashchange", follow);
  form.hidden = false;
  update();
  follow();
})();
