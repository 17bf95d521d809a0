import sys
from pathlib import Path

from hypothesis import settings

# tflite_model.py and one_node_model.py lie one folder up
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

settings.register_profile("fixed_point", derandomize=True, deadline=None)
settings.load_profile("fixed_point")
