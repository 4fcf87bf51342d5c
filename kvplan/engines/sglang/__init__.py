"""SGLang: a static share of the device, pools of tokens, a radix tree over pages."""
