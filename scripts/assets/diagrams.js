// Draws the diagrams of a page with the copy of mermaid beside this file, in the colors of the page.
// Zensical's own integration is not used: it loads mermaid from another host.
(() => {
  const folder = new URL(".", document.currentScript.src);
  let library;

  const load = () =>
    (library ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = new URL("mermaid.tiny.js", folder).href;
      script.onload = () => done(window.mermaid);
      script.onerror = failed;
      document.head.append(script);
    }));

  const dark = () => document.body.dataset.mdColorScheme === "slate";

  async function draw() {
    const sources = [...document.querySelectorAll("pre.diagram")];
    if (sources.length) {
      const mermaid = await load();
      mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: dark() ? "dark" : "neutral", fontFamily: getComputedStyle(document.body).fontFamily });
      let number = 0;
      for (const source of sources) {
        if (!source.nextElementSibling?.matches(".diagram")) source.insertAdjacentHTML("afterend", '<div class="diagram"></div>');
        try {
          const { svg } = await mermaid.render(`diagram-${number++}`, source.textContent);
          source.nextElementSibling.innerHTML = svg;
          source.hidden = true;
        } catch (error) {
          source.dataset.error = String(error.message ?? error); // the source stays visible
        }
      }
    }
    document.documentElement.dataset.diagrams = String(sources.length);
  }

  // document$ emits after each page that Zensical loads without a reload of the browser's page.
  const drawn = () => void draw();
  window.document$ ? window.document$.subscribe(drawn) : document.addEventListener("DOMContentLoaded", drawn);
  new MutationObserver(drawn).observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
})();
