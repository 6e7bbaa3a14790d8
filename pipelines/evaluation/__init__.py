"""How good runs and bundles are, on one split or log: sources → predicting → measuring, comparing → telling."""
