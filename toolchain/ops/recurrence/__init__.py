"""LSTM, GRU and RNN, written out over their sequence."""
