// The rules that choose the final kernels (NN/final/tuning_sm_90.h): that each can be reached, and what few of them
// say.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "05_welford/final/tuning_sm_90.h"
#include "07_backward/final/tuning_sm_90.h"

namespace {

constexpr int64_t multiprocessors = 132;

// Lengths that lie at and beside every bound, and between.
template <class Rules, class Bounds>
std::vector<int64_t> lengths_of(const Rules& rules, const Bounds& bounds_of) {
  std::set<int64_t> found;
  for (const auto& rule : rules) {
    for (const int64_t bound : bounds_of(rule)) {
      for (int64_t length = bound - 1; length <= bound + 1; ++length) found.insert(length);
    }
  }
  for (int64_t length = 0; length < 3000; ++length) found.insert(length);
  for (int64_t length = 3000; length < 70000; length += 61) found.insert(length);
  return {found.begin(), found.end()};
}

const std::vector<int64_t> numbers_of_rows = {1,   2,   8,   9,   33,  64,   65,   128,    129,
                                              256, 257, 400, 512, 513, 1024, 2048, 1 << 20};

// Every kernel that a rule names has to be the first that takes some rows, or the next where the first has no room:
// else it is compiled for nobody. Clusters may have no room, and persistent blocks too few rows, so that the search
// goes on behind them.
void expect_each_is_reached(std::span<const worklog::welford::Rule> rules, const char* table) {
  namespace w = worklog::welford;
  for (const unsigned operation : {w::layer_of_x, w::rms_of_x, w::layer_of_sum, w::rms_of_sum}) {
    for (const unsigned types : {worklog::fp32, worklog::bits16, worklog::mixed}) {
      std::set<size_t> reached;
      for (const int64_t length : lengths_of(rules, [](const w::Rule& r) {
             return std::vector<int64_t>{r.least_vectors, r.most_vectors, r.tile.vectors * r.tile.threads};
           })) {
        for (const int64_t rows : numbers_of_rows) {
          for (const bool are_given : {true, false}) {
            const w::RowFacts facts = {operation, types, are_given, false, rows, length, multiprocessors};
            for (size_t number = worklog::rule_for(rules, facts); number < rules.size();
                 number = worklog::rule_for(rules, facts, number + 1)) {
              reached.insert(number);
              const w::Team team = rules[number].tile.team;
              if (team == w::Team::lanes || team == w::Team::block) break;
            }
          }
        }
      }
      for (size_t number = 0; number < rules.size(); ++number) {
        if (w::is_for(rules[number], operation, types)) {
          EXPECT_TRUE(reached.contains(number))
              << table << ": no rows get to rule " << number << " for operation " << operation << ", types " << types;
        }
      }
    }
  }
}

TEST(ForwardRules, EveryOneIsReachedByEveryOperationAndTypeThatItNames) {
  expect_each_is_reached(worklog::welford::sm_90::whole_vectors, "whole_vectors");
  expect_each_is_reached(worklog::welford::sm_90::straddling, "straddling");
}

// Four rows to a multiprocessor, whatever their width: narrower rows are not more of them. Rows without gamma, rows of
// fp32, and those whose bits must not depend on the batch stay with the lanes.
TEST(ForwardRules, AFewNarrowRowsHaveABlockEach) {
  namespace w = worklog::welford;
  const std::span<const w::Rule> rules = w::sm_90::whole_vectors;
  const auto team_of = [&](const w::RowFacts& facts) { return rules[worklog::rule_for(rules, facts)].tile.team; };
  for (const int64_t vectors : {9, 15, 64}) {
    w::RowFacts facts = {w::rms_of_x, worklog::bits16, true, false, 4 * multiprocessors, vectors, multiprocessors};
    EXPECT_EQ(team_of(facts), w::Team::block) << vectors << " vectors";
    ++facts.rows;
    EXPECT_EQ(team_of(facts), w::Team::lanes) << vectors << " vectors, one row more";
    facts.rows = 1;
    w::RowFacts bare = facts, of_fp32 = facts, invariant = facts;
    bare.are_given = false;
    of_fp32.types = worklog::fp32;
    invariant.batch_invariant = true;
    EXPECT_EQ(team_of(bare), w::Team::lanes) << vectors << " vectors, no gamma";
    EXPECT_EQ(team_of(of_fp32), w::Team::lanes) << vectors << " vectors of fp32";
    EXPECT_EQ(team_of(invariant), w::Team::lanes) << vectors << " vectors, batch_invariant";
  }
}

// 128 columns of 16 bits: sixteen lanes hold a row with nothing to ask, where rows fill their blocks.
TEST(ForwardRules, FewRowsOf16VectorsThatFillTheirBlocksHaveSixteenLanesEach) {
  namespace w = worklog::welford;
  const std::span<const w::Rule> rules = w::sm_90::whole_vectors;
  w::RowFacts facts = {w::layer_of_x, worklog::bits16, true, false, 8, 16, multiprocessors};
  EXPECT_EQ(rules[worklog::rule_for(rules, facts)].tile.threads, 16);
  EXPECT_EQ(rules[worklog::rule_for(rules, facts)].tile.known, w::Known::full);
  for (const int64_t rows : {1, 7, 9, 12}) {
    facts.rows = rows;
    EXPECT_EQ(rules[worklog::rule_for(rules, facts)].tile.team, w::Team::block) << rows << " rows";
  }
}

TEST(BackwardRules, EveryOneIsReachedByEveryPassAndTypeThatItNames) {
  namespace b = worklog::backward;
  const auto expect_each = [](std::span<const b::Rule> rules, const char* table) {
    for (const unsigned pass : {b::plain, b::adds_dh}) {
      for (const unsigned types : {worklog::fp32, worklog::bits16, worklog::mixed}) {
        std::set<size_t> reached;
        for (const int64_t length : lengths_of(rules, [](const b::Rule& r) {
               return std::vector<int64_t>{r.most_units < 1 << 20 ? r.most_units : 0};
             })) {
          for (const int64_t rows : numbers_of_rows) {
            for (const int kind : {0, 1, 2}) {
              const b::RowFacts facts = {pass, types, kind == 1, kind == 2, false, rows, length};
              for (size_t number = worklog::rule_for(rules, facts); number < rules.size();
                   number = worklog::rule_for(rules, facts, number + 1)) {
                reached.insert(number);
                const b::Team team = rules[number].tile.team;  // those that may have no room
                if (team != b::Team::cluster && team != b::Team::cluster_beside_tiles) break;
              }
            }
          }
        }
        for (size_t number = 0; number < rules.size(); ++number) {
          if (b::is_for(rules[number], pass, types)) {
            EXPECT_TRUE(reached.contains(number))
                << table << ": no rows get to rule " << number << " for pass " << pass << ", types " << types;
          }
        }
      }
    }
  };
  expect_each(b::sm_90::whole_vectors, "whole_vectors");
  expect_each(b::sm_90::same_offset, "same_offset");
  expect_each(b::sm_90::any_offset, "any_offset");
}

// What is known to be full has to be: a kernel that asks nothing reads past a row that does not fill its threads.
TEST(ForwardRules, FullMeansFull) {
  namespace w = worklog::welford;
  const w::Tile lanes = w::tiles::lanes(w::Known::full, 4, 32);
  EXPECT_TRUE(w::is_full(lanes, {w::layer_of_x, worklog::bits16, true, false, 4, 128, multiprocessors}));
  EXPECT_FALSE(w::is_full(
      lanes, {w::layer_of_x, worklog::bits16, true, false, 5, 128, multiprocessors}));  // a block with a team less
  EXPECT_FALSE(w::is_full(lanes, {w::layer_of_x, worklog::bits16, true, false, 4, 127, multiprocessors}));
  const w::Tile block = w::tiles::block(w::Known::full, 4, 512, 2);
  EXPECT_TRUE(w::is_full(block, {w::layer_of_x, worklog::bits16, true, false, 5, 384, multiprocessors}));
  EXPECT_FALSE(w::is_full(block, {w::layer_of_x, worklog::bits16, true, false, 5, 400, multiprocessors}));
}

TEST(ForwardRules, WithoutParametersNoRuleIsTakenThatNeedsThem) {
  namespace w = worklog::welford;
  for (int64_t length = 1; length < 70000; ++length) {
    const w::RowFacts facts = {w::layer_of_x, worklog::bits16, false, false, 1000, length, multiprocessors};
    const size_t number = worklog::rule_for(std::span<const w::Rule>(w::sm_90::whole_vectors), facts);
    ASSERT_LT(number, std::size(w::sm_90::whole_vectors)) << length;
    ASSERT_EQ(w::sm_90::whole_vectors[number].tile.known, w::Known::asked) << length;
  }
}

// With batch_invariant all numbers of rows of one length go to one rule, if there is one.
TEST(ForwardRules, TheBatchDoesNotMatterWhereItMustNot) {
  namespace w = worklog::welford;
  const std::span<const w::Rule> rules = w::sm_90::whole_vectors;
  for (const unsigned operation : {w::layer_of_x, w::rms_of_x, w::layer_of_sum, w::rms_of_sum}) {
    for (const unsigned types : {worklog::fp32, worklog::bits16, worklog::mixed}) {
      for (int64_t length = 1; length < 70000; length += length < 5000 ? 1 : 61) {
        std::set<size_t> taken;
        for (const int64_t rows : numbers_of_rows) {
          taken.insert(
              worklog::rule_for(rules, w::RowFacts{operation, types, true, true, rows, length, multiprocessors}));
        }
        ASSERT_EQ(taken.size(), 1) << length;
        if (length <= 32768) {  // longer rows may be left to reread
          ASSERT_LT(*taken.begin(), rules.size()) << length;
        }
      }
    }
  }
}

TEST(BackwardRules, TheBatchDoesNotMatterWhereItMustNot) {
  namespace b = worklog::backward;
  for (const std::span<const b::Rule> rules :
       {std::span<const b::Rule>(b::sm_90::whole_vectors), std::span<const b::Rule>(b::sm_90::any_offset)}) {
    for (const unsigned pass : {b::plain, b::adds_dh}) {
      for (int64_t length = 1; length < 70000; length += length < 5000 ? 1 : 61) {
        std::set<size_t> taken;
        for (const int64_t rows : numbers_of_rows) {
          for (const bool is_small : {false, true}) {
            taken.insert(
                worklog::rule_for(rules, b::RowFacts{pass, worklog::fp32, is_small, is_small, true, rows, length}));
          }
        }
        ASSERT_EQ(taken.size(), 1) << length;
      }
    }
  }
}

}  // namespace
