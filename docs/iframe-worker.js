// A page that is opened from disk may start no worker, and the search runs in one. Here it runs in a hidden frame instead.
if (location.protocol === "file:") {
  const load = (frame, url) =>
    new Promise((resolve, reject) => {
      const script = frame.contentDocument.createElement("script");
      Object.assign(script, { src: url, onload: resolve, onerror: reject });
      frame.contentDocument.body.appendChild(script);
    });

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.answer(data);
      inside.importScripts = (...urls) => urls.reduce((done, each) => done.then(() => load(this.frame, each)), Promise.resolve());
      this.ready = load(this.frame, url);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    answer(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
