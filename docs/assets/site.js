// Opened from disk, a page may not start the worker that searches: no search box then, and no error in the console.
if (location.protocol === "file:") {
  window.Worker = function () { this.postMessage = () => {}; };
  document.querySelector("#rtd-search-form")?.remove();
}
