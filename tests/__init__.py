"""Tests of korvet; directories mirror the package and the Lua library. Real servers only."""
