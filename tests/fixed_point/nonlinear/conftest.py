import sys
from pathlib import Path

from hypothesis import settings

# tflite_model.py lies one folder up, onnx_model.py beside the core's tests
sys.path[:0] = [str(Path(__file__).resolve().parent.parent), str(Path(__file__).resolve().parent.parent / "core")]

settings.register_profile("fixed_point", derandomize=True, deadline=None)
settings.load_profile("fixed_point")
