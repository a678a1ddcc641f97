// Browsers refuse workers to pages that were opened from a disk: there the worker of the search runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    onmessage = null;

    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      // To the worker's script, `postMessage` is that of a worker: it goes to the page.
      this.frame.srcdoc = `<script>self.postMessage = data => parent.postMessage(data, "*")</script><script src="${url}"></script>`;
      this.ready = new Promise(done => this.frame.addEventListener("load", done));
      this.receive = event => {
        if (event.source !== this.frame.contentWindow) return;
        const message = new MessageEvent("message", {data: event.data});
        this.onmessage?.(message);
        this.dispatchEvent(message);
      };
      addEventListener("message", this.receive);
      document.documentElement.append(this.frame);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow?.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      removeEventListener("message", this.receive);
      this.frame.remove();
    }
  };
}
