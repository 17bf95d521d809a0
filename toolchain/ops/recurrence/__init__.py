"""Decompose LSTM, GRU and RNN into steps, unrolled over their sequence."""
