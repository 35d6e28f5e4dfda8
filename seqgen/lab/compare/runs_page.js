// The check boxes show and hide the curves of their runs.
for (const box of document.querySelectorAll("input[data-run]")) {
  const update = () => {
    for (const curve of document.querySelectorAll(`.run-${box.dataset.run}`)) curve.style.display = box.checked ? "" : "none";
  };
  box.addEventListener("change", update);
  update();
}
