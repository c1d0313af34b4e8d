// Lets search work in pages that are opened from the disk: there a browser starts no worker, so a hidden frame does its work.
// The file has this name because the plugin `offline` would fetch a script of this name from another host, were it not here.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      frame.srcdoc = `<script>postMessage = (data) => frameElement.answer(data)</script><script src="${address}"></script>`;
      frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      frame.onload = () => {
        this.frame = frame.contentWindow;
        for (const data of this.waiting) this.postMessage(data);
      };
      document.body.append(frame);
    }

    postMessage(data) {
      if (this.frame) this.frame.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  };
}
